"""C8: its rules on made-up counts, and counts by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from elman.lab.c08_sizes import EXPERIMENT, Saved
from elman.lab.verdicts import answers, joint


def rows(w_factor: float = 2.0, elsewhere: int = 0, rnn: int = 50) -> list[dict[str, object]]:
    return [
        {"seed": seed, **row}
        for seed in range(5)
        for row in (
            {"window": 2, "W": 100, "all": 1000},
            {"window": 4, "W": 100 * w_factor, "all": 900 + 100 * w_factor + elsewhere},
            {"length": 2, "all": 50},
            {"length": 2000, "all": rnn},
        )
    ]


def test_it_holds_and_fails_by_its_rules() -> None:
    assert joint(answers(EXPERIMENT, rows())) == "holds"
    assert joint(answers(EXPERIMENT, rows(w_factor=1.5))) == "does not hold here"
    assert joint(answers(EXPERIMENT, rows(elsewhere=50))) == "does not hold here"
    assert joint(answers(EXPERIMENT, rows(rnn=51))) == "does not hold here"


def test_the_effects_by_hand() -> None:
    factor, share, growth = answers(EXPERIMENT, rows(w_factor=3.0, elsewhere=200, rnn=75))
    assert factor.mean == pytest.approx(3.0)
    assert share.mean == pytest.approx(0.5)
    assert growth.mean == pytest.approx(0.5)


def test_what_a_forward_pass_keeps() -> None:
    weight, x = nn.Parameter(torch.ones(3)), torch.ones(3)
    saved = Saved()
    with saved:
        (weight * x).sum()
    assert saved.numbers == 3
