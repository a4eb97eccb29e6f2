"""C14: its rules on made-up rows."""

from __future__ import annotations

import pytest

from elman.lab.c14_regimes import (
    BLOCKS,
    EXPERIMENT,
    PEOPLE,
    PROFESSOR,
    SCHEDULED,
    TEACHER,
    regimes,
    rise,
)
from elman.lab.verdicts import answers, joint
from elman.objectives.objective_config import RegimeConfig


def rows(*, rising: float = 0.05, scheduled: float = 0.1, professor: float = 0.1) -> list[dict]:
    """`rising`: nats for each block with teacher forcing; the others: gains."""
    own: list[dict] = []
    for block in range(BLOCKS):
        own += [{"text": TEACHER, "block": block, "position": block, "nats": 2 + rising * block}]
        own += [{"text": PEOPLE, "block": block, "position": block, "nats": 1.5 + 0.01 * block}]
    for name, gain in ((TEACHER, 0.0), (SCHEDULED, scheduled), (PROFESSOR, professor)):
        own += [{"of": name, "surprisal": 2.0 - gain, "distinct": 0.5}]
    return [{"seed": seed, **row} for seed in range(5) for row in own]


def test_it_holds_and_fails_by_its_rules() -> None:
    assert joint(answers(EXPERIMENT, rows())) == "holds"
    for changed in ({"rising": 0.01}, {"scheduled": 0.0}, {"professor": -0.1}):
        assert joint(answers(EXPERIMENT, rows(**changed))) == "does not hold here", changed


def test_the_rise_is_from_the_first_quarter_to_the_last() -> None:
    # Blocks 0 and 1 against 6 and 7: six blocks.
    assert rise(rows(), TEACHER) == pytest.approx(0.3)
    assert answers(EXPERIMENT, rows())[0].mean == pytest.approx(0.3 - 0.06)


@pytest.mark.parametrize("truth", EXPERIMENT.knob.values)
def test_the_regimes_are_settings(truth: float) -> None:
    made = {name: RegimeConfig(**settings) for name, settings in regimes(truth).items()}
    assert made[SCHEDULED].least_truth == truth
