"""C1: its rules on made-up rows, and the gradient by hand."""

from __future__ import annotations

import math

import pytest
import torch

from elman.lab.c01_gradients import EXPERIMENT, gradient_norms, slope, with_radius
from elman.lab.verdicts import answers, joint


def rows(slope: float, diverges: bool) -> list[dict[str, object]]:
    return [
        {"seed": seed, **row}
        for seed in range(5)
        for row in (
            {"fitted": 2.0, "slope": slope, "log_radius": math.log(2.0)},
            {"arm": "clipped to norm 1", "network": 0, "update": 9, "diverged": False},
            {"arm": "not clipped", "network": 0, "update": 9, "diverged": diverges},
        )
    ]


def test_it_holds_and_fails_by_its_rules() -> None:
    assert joint(answers(EXPERIMENT, rows(math.log(2.0), True))) == "holds"
    assert joint(answers(EXPERIMENT, rows(math.log(2.0), False))) == "does not hold here"
    assert joint(answers(EXPERIMENT, rows(math.log(3.0), True))) == "does not hold here"


def test_the_slope_of_a_power() -> None:
    assert slope([0.5**distance for distance in range(100)]) == pytest.approx(math.log(0.5))
    assert math.isnan(slope([0.0] * 100))


def test_the_radius() -> None:
    torch.manual_seed(1)
    assert float(torch.linalg.eigvals(with_radius(1.5, 8)).abs().max()) == pytest.approx(1.5)


def test_without_input_the_gradient_is_a_power_of_u() -> None:
    torch.manual_seed(1)
    norms = gradient_norms(1.0, 1, 0.0)
    assert norms == pytest.approx([norms[0]] * len(norms))
