"""C15: its rules on made-up rows."""

from __future__ import annotations

import pytest

from elman.lab.c15_decoding import (
    EXPERIMENT,
    GREEDY,
    PEOPLE,
    SAMPLING,
    TEMPERATURES,
    behind_people,
    monotone,
)
from elman.lab.verdicts import answers, joint


def row(scheme: str, surprisal: float, distinct: float, repeated: float = 0.0) -> dict:
    about = {"scheme": scheme, "temperature": None, "surprisal": surprisal}
    return about | {"distinct": distinct, "repeated": repeated}


def rows(
    *, surprisal: float = 1.0, distinct: float = 0.5, greedy: float = 0.9, people: float = 1.0
) -> list[dict]:
    """Surprisal and diversity grow with the temperature by these slopes."""
    own = [row(PEOPLE, people, 0.5), row(GREEDY, 0.5, 0.1, greedy)]
    own += [
        row(SAMPLING, 1 + surprisal * t, distinct * t, 0.1) | {"temperature": t}
        for t in TEMPERATURES
    ]
    return [{"seed": seed, **each} for seed in range(5) for each in own]


def test_it_holds_and_fails_by_its_rules() -> None:
    assert joint(answers(EXPERIMENT, rows())) == "holds"
    for changed in ({"surprisal": -0.1}, {"distinct": -0.5}, {"greedy": 0.2}, {"people": 3.0}):
        assert joint(answers(EXPERIMENT, rows(**changed))) == "does not hold here", changed


def test_rank_correlations() -> None:
    assert monotone(rows()[:8], "surprisal") == 1.0
    assert monotone(rows(surprisal=0.0)[:8], "surprisal") == 0.0
    assert monotone(rows(distinct=-1.0)[:8], "distinct") == -1.0


def test_the_price_of_diversity_is_read_between_temperatures() -> None:
    # People's diversity 0.5 is that of temperature 1, whose surprisal is 2.
    assert behind_people(rows()) == pytest.approx(1.0)
    # Of temperature 1.25, between 1.0 and 1.3.
    assert behind_people(rows(distinct=0.4)) == pytest.approx(1.25)
    # Beyond the temperatures, the nearest one counts.
    assert behind_people(rows(distinct=0.1)) == pytest.approx(1.6)
    assert behind_people(rows(distinct=5.0)) == pytest.approx(0.3)
