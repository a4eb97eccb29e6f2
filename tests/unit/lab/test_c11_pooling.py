"""C11: its rules on made-up rows, and the texts with a signal."""

from __future__ import annotations

import random

import pytest

from elman.lab.c11_pooling import (
    EXPERIMENT,
    NUM_WORDS,
    by_distance,
    distance,
    gain,
    signal_text,
    verses,
)
from elman.lab.verdicts import answers, joint


def rows(mean: float, maximum: float, last: float = 0.8) -> list[dict[str, object]]:
    return [
        {"seed": seed, "task": task, "pooling": pooling, "accuracy": accuracy}
        for seed in range(5)
        for task in ("signal", "translation")
        for pooling, accuracy in (("last", last), ("mean", mean), ("max", maximum))
    ]


def test_it_holds_and_fails_by_its_rules() -> None:
    assert joint(answers(EXPERIMENT, rows(0.85, 0.83))) == "holds"
    assert joint(answers(EXPERIMENT, rows(0.85, 0.805))) == "does not hold here"
    assert joint(answers(EXPERIMENT, rows(0.78, 0.83))) == "does not hold here"


def test_the_gain_is_in_points() -> None:
    assert gain(rows(0.85, 0.83)[:6], "signal", "mean") == pytest.approx(5.0)
    assert gain(rows(0.85, 0.83)[:6], "translation", "max") == pytest.approx(3.0)


def test_a_text_has_one_signal_where_it_was_put() -> None:
    label, text = signal_text(random.Random(1), 7)
    words = text.split()
    assert len(words) == NUM_WORDS
    assert words[7] == f"signal{label}"
    assert sum(word.startswith("signal") for word in words) == 1
    assert distance(text) == NUM_WORDS - 8


def test_answers_are_grouped_by_distance() -> None:
    draw = random.Random(1)
    texts = [signal_text(draw, place) for place in (NUM_WORDS - 1, NUM_WORDS - 2, 0)]
    near, far = by_distance("last", texts, [True, False, True])
    assert (near["share"], far["share"]) == (0.5, 1.0)
    assert near["distance"] < far["distance"] < NUM_WORDS


def test_no_verse_occurs_twice() -> None:
    texts = [text for _, text in verses(random.Random(1), 10**6)]
    assert len(texts) > 20_000
    assert len(set(texts)) == len(texts)
