"""C9: its rules on made-up rows; multiplications by hand."""

from __future__ import annotations

import pytest

from elman.lab.c09_depth import EXPERIMENT, JOINS, multiplications
from elman.lab.verdicts import answers, joint


def rows(*, two: float = 1.9, cost: float = 2.0, **joins: float) -> list[dict]:
    losses = {"one layer": 2.0, "two layers": two, "plain": 3.0}
    losses |= dict.fromkeys(JOINS, 2.0) | joins
    made = []
    for seed in range(5):
        made += [{"seed": seed, "stack": "one layer", "layers": 1, "multiplications": 100}]
        made += [{"seed": seed, "stack": "two layers", "layers": 2, "multiplications": 100 * cost}]
        for arm, loss in losses.items():
            about = {"seed": seed, "arm": arm, "cost": 1.0}
            made += [about | {"update": 40, "loss": 9.0}, about | {"update": 200, "loss": loss}]
    return made


def test_it_holds_and_fails_by_its_rules() -> None:
    assert joint(answers(EXPERIMENT, rows())) == "holds"
    for changed in ({"two": 2.1}, {"cost": 1.0}, {"residual": 2.9}, {"highway": 3.5}, {"dense": 3}):
        assert joint(answers(EXPERIMENT, rows(**changed))) == "does not hold here", changed


def test_the_effects_are_those_of_the_last_updates() -> None:
    means = [finding.mean for finding in answers(EXPERIMENT, rows())]
    assert means == pytest.approx([0.1, 2.0, 1.0, 1.0, 1.0])


def test_multiplications_by_hand() -> None:
    model = {"hidden_size": 8, "embedding_size": 8}
    assert multiplications(model) == 4 * 8 * (8 + 8)
    assert multiplications({**model, "num_layers": 3}) == 3 * 4 * 8 * (8 + 8)
    dense = {**model, "num_layers": 2, "join": "dense"}
    assert multiplications(dense) == 4 * 8 * (8 + 8) + 4 * 8 * (16 + 8)
