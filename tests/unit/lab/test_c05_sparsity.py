"""C5: its rules on made-up rows."""

from __future__ import annotations

import pytest

from elman.lab.c05_sparsity import EXPERIMENT
from elman.lab.verdicts import answers, joint


def rows(
    unseen: float = 0.9, megabytes: float = 10.0, impossible: float = 0.5, nats: float = 6.0
) -> list[dict[str, object]]:
    return [
        {"seed": seed, **row}
        for seed in range(5)
        for row in (
            {"order": 3, "smoothing": "maximum-likelihood", "impossible": impossible},
            {"order": 3, "smoothing": "add-delta", "impossible": 0.0, "nats": 5.0},
            {"order": 7, "smoothing": "add-delta", "impossible": 0.0, "nats": nats},
            {"n": 2, "unseen": 0.3, "megabytes": 1.0},
            {"n": 5, "unseen": unseen, "megabytes": megabytes},
        )
    ]


def test_it_holds_and_fails_by_its_rules() -> None:
    assert joint(answers(EXPERIMENT, rows())) == "holds"
    assert joint(answers(EXPERIMENT, rows(unseen=0.4))) == "does not hold here"
    assert joint(answers(EXPERIMENT, rows(megabytes=2.0))) == "does not hold here"
    assert joint(answers(EXPERIMENT, rows(impossible=0.0))) == "does not hold here"
    assert joint(answers(EXPERIMENT, rows(nats=5.0))) == "does not hold here"


def test_the_effects_by_hand() -> None:
    effects = [finding.mean for finding in answers(EXPERIMENT, rows())]
    assert effects == pytest.approx([0.6, 10.0, 0.5, 1.0])
