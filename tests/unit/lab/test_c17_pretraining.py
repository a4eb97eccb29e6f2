"""C17: its rules on made-up rows, and the verses."""

from __future__ import annotations

import random

import pytest

from elman.lab.c17_pretraining import EXPERIMENT, gain, in_order
from elman.lab.verdicts import answers, joint


def rows(testament: float, order: float) -> list[dict[str, object]]:
    """Accuracies of the fine-tuned model; those of word vectors are 0.6."""
    return [
        {"seed": seed, "task": task, "arm": arm, "accuracy": accuracy}
        for seed in range(5)
        for task, best in (("testament", testament), ("order", order))
        for arm, accuracy in (("word vectors", 0.6), ("fine-tuned", best))
    ]


def test_it_holds_and_fails_by_its_rules() -> None:
    assert joint(answers(EXPERIMENT, rows(0.65, 0.7))) == "holds"
    assert joint(answers(EXPERIMENT, rows(0.605, 0.7))) == "does not hold here"
    assert joint(answers(EXPERIMENT, rows(0.65, 0.6))) == "does not hold here"


def test_the_gain_is_in_points() -> None:
    assert gain(rows(0.65, 0.7)[:4], "order") == pytest.approx(10.0)


def test_neighbours_are_swapped() -> None:
    seen = {}
    draw = random.Random(1)
    for _ in range(20):
        label, words = in_order(draw, ("a", "b", "c", "d", "e"))
        seen[label] = words
    assert seen == {
        "written": ("a", "b", "c", "d", "e"),
        "swapped": ("b", "a", "d", "c", "e"),
    }
