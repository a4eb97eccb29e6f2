"""D5: its rules on made-up accuracies."""

from __future__ import annotations

import pytest

from elman.lab.d05_parity import CELLS, EXPERIMENT
from elman.lab.verdicts import answers, joint


def rows(**right: float) -> list[dict[str, object]]:
    found = dict.fromkeys(CELLS, 0.52) | {"lstm": 0.99} | right
    return [
        {"seed": seed, "cell": cell, "position": position, "right": value, "length": 4}
        for seed in range(5)
        for cell, accuracy in found.items()
        for position, value in ((1, 1.0), (4, accuracy), (8, 0.5))
    ]


def test_it_holds_and_fails_by_its_rules() -> None:
    assert joint(answers(EXPERIMENT, rows())) == "holds"
    assert joint(answers(EXPERIMENT, rows(lstm=0.6))) == "does not hold here"
    for cell in ("mingru", "minlstm", "sru"):
        assert joint(answers(EXPERIMENT, rows(**{cell: 0.97}))) == "does not hold here"


def test_the_last_quarter_of_the_trained_length_counts() -> None:
    assert answers(EXPERIMENT, rows(lstm=0.8))[0].mean == pytest.approx(0.8)
