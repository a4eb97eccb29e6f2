"""C10: its rules on made-up rows, the pointers, and equal parameters."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elman.lab.c10_directions import (
    EMBEDDING,
    EXPERIMENT,
    REACH,
    UNITS,
    num_weights,
    pointing,
    times_slower,
)
from elman.lab.texts import write_tagged
from elman.lab.verdicts import answers, joint
from elman.nn.bidirectional import Bidirectional
from elman.nn.cells import LSTMCell
from elman.nn.layer import RecurrentLayer


def rows(gain: float, times: float) -> list[dict[str, object]]:
    shares = {"one direction": 0.8, "both, equal parameters": 0.8 + gain}
    tagged = [
        {"task": task, "arm": arm, "accuracy": share}
        for task in ("pointers", "marks")
        for arm, share in shares.items()
    ]
    timed = [
        {"timed": arm, "milliseconds": time}
        for arm, time in (("one direction", 2.0), ("both, equal units", 2.0 * times))
    ]
    return [{"seed": seed, **row} for seed in range(5) for row in (*tagged, *timed)]


def test_it_holds_and_fails_by_its_rules() -> None:
    assert joint(answers(EXPERIMENT, rows(0.05, 1.8))) == "holds"
    assert joint(answers(EXPERIMENT, rows(-0.002, 1.8))) == "holds"
    assert joint(answers(EXPERIMENT, rows(-0.02, 1.8))) == "does not hold here"
    assert joint(answers(EXPERIMENT, rows(0.05, 1.0))) == "does not hold here"


def test_times_are_those_of_equal_units() -> None:
    assert times_slower(rows(0.0, 1.7)[:6]) == pytest.approx(1.7)


@given(st.integers(0, 100), st.sampled_from([0.0, 0.5, 1.0]))
def test_a_word_points_to_its_tag(seed: int, share: float) -> None:
    words, tags = pointing(random.Random(seed), share)
    for place, (word, tag) in enumerate(zip(words, tags, strict=True)):
        there = place + (REACH if word[0] == ">" else -REACH)
        assert tag == (words[there][1] if 0 <= there < len(words) else "none")
        assert word[0] in {0.0: "<", 0.5: "<>", 1.0: ">"}[share]


@pytest.mark.parametrize("size", ["small", "large"])
def test_the_parameters_are_equal(size: str) -> None:
    one, each = UNITS[size]
    inputs = EMBEDDING[size]
    ratio = num_weights(each, inputs, 2) / num_weights(one, inputs, 1)
    assert ratio == pytest.approx(1, abs=0.01)


def test_the_number_of_parameters_is_that_of_the_layers() -> None:
    layers = [RecurrentLayer(LSTMCell(4, 6), reverse=reverse) for reverse in (False, True)]
    both = Bidirectional(*layers, merge="concat")
    found = sum(weights.numel() for weights in both.parameters())
    assert found == num_weights(6, 4, 2)


def test_tagged_sentences_are_separated(tmp_path: Path) -> None:
    write_tagged(tmp_path / "a.txt", [(("a", "b"), ("x", "y")), (("c",), ("z",))])
    assert (tmp_path / "a.txt").read_text() == "a\tx\nb\ty\n\nc\tz\n"
