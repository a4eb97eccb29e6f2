"""C4: its rules on made-up rows; parameters by hand."""

from __future__ import annotations

import pytest

from elman.lab.c04_gru import EXPERIMENT, parameters, units_for
from elman.lab.verdicts import answers, joint
from elman.models.recurrent import RecurrentLMConfig


def rows(*, ratio: float = 0.75, time: float = 0.8, difference: float = 0.0) -> list[dict]:
    return [
        {"seed": seed, **row}
        for seed in range(5)
        for row in (
            {"cell": "lstm", "parameters": 1000},
            {"cell": "gru", "parameters": 1000 * ratio},
            {"timed": "lstm", "kernel": "auto", "milliseconds": 10.0},
            {"timed": "gru", "kernel": "auto", "milliseconds": 10.0 * time},
            {"timed": "gru", "kernel": "torch", "milliseconds": 99.0},
            {"arm": "lstm", "update": 100, "loss": 9.0},
            {"arm": "lstm", "update": 400, "loss": 2.0},
            {"arm": "gru", "update": 400, "loss": 2.0 + difference},
        )
    ]


def test_it_holds_and_fails_by_its_rules() -> None:
    assert joint(answers(EXPERIMENT, rows())) == "holds"
    for changed in ({"ratio": 1.0}, {"time": 1.1}, {"difference": 0.1}, {"difference": -0.1}):
        assert joint(answers(EXPERIMENT, rows(**changed))) == "does not hold here", changed


def test_the_effects_are_those_of_the_rows() -> None:
    means = [finding.mean for finding in answers(EXPERIMENT, rows(difference=0.01))]
    assert means == pytest.approx([0.75, 0.8, 0.01])


def test_parameters_and_units() -> None:
    assert parameters(RecurrentLMConfig(hidden_size=5, embedding_size=3)) == 4 * 5 * (5 + 3 + 1)
    units = units_for(128)
    same = RecurrentLMConfig(cell="gru", hidden_size=units, embedding_size=32)
    wanted = parameters(RecurrentLMConfig(hidden_size=128, embedding_size=32))
    assert parameters(same) == pytest.approx(wanted, rel=0.01)
