"""C16: its rules on made-up times."""

from __future__ import annotations

import pytest

from elman.lab.c16_parallel import CELLS, EXPERIMENT, PIECES
from elman.lab.verdicts import answers, joint


def rows(**ratios: float) -> list[dict[str, object]]:
    found = {"lstm": 2.0, "gru": 1.8, "mingru": 1.0, "sru": 1.1} | ratios
    return [
        {"seed": seed, "cell": cell, "pieces": pieces, "threads": 2, "most": most} | {
            "milliseconds": 10.0 * (found[cell] if pieces == 1 and most else 1.0)
        }
        for seed in range(5)
        for cell in CELLS
        for pieces in PIECES
        for most in (True, False)
    ]  # fmt: skip


def test_it_holds_and_fails_by_its_rules() -> None:
    assert joint(answers(EXPERIMENT, rows())) == "holds"
    assert joint(answers(EXPERIMENT, rows(lstm=1.0))) == "does not hold here"
    assert joint(answers(EXPERIMENT, rows(mingru=2.0))) == "does not hold here"


def test_the_price_is_a_ratio_with_all_threads() -> None:
    effects = [finding.mean for finding in answers(EXPERIMENT, rows())]
    assert effects == pytest.approx([2.0, 1.8, 1.0, 1.1])
