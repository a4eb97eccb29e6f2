"""D3: its rules on made-up rows, and a gradient by hand."""

from __future__ import annotations

import pytest
import torch

from elman.lab.d03_depth import DEPTH, EXPERIMENT, Deep, examples, gradient_norms
from elman.lab.verdicts import answers, joint


def rows(
    plain: float = 1e-10, residual: float = 1.0, loss: float = 0.69
) -> list[dict[str, object]]:
    return [
        {"seed": seed, **row}
        for seed in range(5)
        for row in (
            {"join": "plain", "layer": 1, "norm": plain},
            {"join": "plain", "layer": DEPTH, "norm": 1.0},
            {"join": "residual", "layer": 1, "norm": residual},
            {"join": "residual", "layer": DEPTH, "norm": 1.0},
            {"arm": f"{DEPTH} layers, plain", "update": 1, "loss": loss},
            {"arm": f"{DEPTH} layers, residual", "update": 1, "loss": 0.09},
        )
    ]


def test_it_holds_and_fails_by_its_rules() -> None:
    assert joint(answers(EXPERIMENT, rows())) == "holds"
    assert joint(answers(EXPERIMENT, rows(plain=0.5))) == "does not hold here"
    assert joint(answers(EXPERIMENT, rows(residual=1e-5))) == "does not hold here"
    assert joint(answers(EXPERIMENT, rows(loss=0.1))) == "does not hold here"


def test_the_effects_by_hand() -> None:
    effects = [finding.mean for finding in answers(EXPERIMENT, rows())]
    assert effects == pytest.approx([-10.0, 0.0, 0.6])


def test_a_layer_of_zeros_stops_the_gradient_unless_it_is_residual() -> None:
    torch.manual_seed(1)
    for join, stops in (("plain", True), ("residual", False)):
        model = Deep(2, "tanh", join)  # type: ignore[arg-type]
        torch.nn.init.zeros_(model.layers[1].weight)  # type: ignore[arg-type]
        model(examples(8, torch.Generator())[0]).sum().backward()
        assert (float(model.layers[0].weight.grad.norm()) == 0.0) == stops  # type: ignore[union-attr,operator]


def test_every_layer_has_a_gradient() -> None:
    assert len(gradient_norms("sigmoid", "plain", 1)) == DEPTH
