"""D2: its rules on made-up losses."""

from __future__ import annotations

import pytest

from elman.lab.d02_data import EXPERIMENT, units
from elman.lab.verdicts import answers, joint
from elman.nn.cells import LSTMCell, RNNCell


def rows(scarce: float, plenty: float) -> list[dict[str, object]]:
    return [
        {"seed": seed, "cell": cell, "characters": size, "best": 2.0 + more}
        for seed in range(5)
        for size, difference in ((2_000, scarce), (128_000, plenty))
        for cell, more in (("rnn", 0.0), ("lstm", difference))
    ]


def test_it_holds_and_fails_by_its_rules() -> None:
    assert joint(answers(EXPERIMENT, rows(0.1, -0.1))) == "holds"
    assert joint(answers(EXPERIMENT, rows(-0.1, -0.3))) == "does not hold here"
    assert joint(answers(EXPERIMENT, rows(0.1, 0.2))) == "does not hold here"


def test_the_effects_by_hand() -> None:
    effects = [finding.mean for finding in answers(EXPERIMENT, rows(0.1, -0.2))]
    assert effects == pytest.approx([0.1, 0.3])


def test_half_of_the_units_is_about_as_many_weights() -> None:
    rnn, lstm = (
        sum(p.numel() for p in cell(32, units(name, "weights")).parameters())
        for name, cell in (("rnn", RNNCell), ("lstm", LSTMCell))
    )
    assert 0.5 < lstm / rnn < 2.0
    assert units("lstm", "units") == units("rnn", "units")
