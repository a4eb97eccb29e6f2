from __future__ import annotations

import math

import pytest

from elman.tasks.captioning.evaluation import cider


def test_a_caption_like_no_other_picture_is_worth_ten() -> None:
    references = [["a red cat sleeps here"], ["two big dogs run fast"]]
    assert cider([each[0] for each in references], references) == pytest.approx(10)


def test_words_that_every_picture_has_are_worth_nothing() -> None:
    references = [["there is a cat"], ["there is a dog"]]
    assert cider(["there is a", "there is a"], references) == pytest.approx(0)


def test_by_hand() -> None:
    """Two pictures; only `red cat` is there to be compared, and log 2 is every weight."""
    references = [["red cat"], ["blue dog"]]
    # The caption has red once, dog once. n = 1: cosine of (1, 0, 1) and (1, 1, 0) in units of log 2
    # is 1 / 2; n = 2: nothing in common; n = 3, 4: nothing at all. The second caption is one word
    # short: its cosine is 1 / sqrt(2), times exp(-1 / 72).
    found = cider(["red dog", "blue"], references)
    first = (1 / 2) / 4
    second = math.exp(-1 / 72) * (1 / math.sqrt(2)) / 4
    assert found == pytest.approx(10 * (first + second) / 2)


def test_saying_a_word_again_and_again_does_not_help() -> None:
    references = [["red cat"], ["blue dog"]]
    once, often = (cider([text, "x"], references) for text in ("red", "red red red"))
    assert often < once


def test_several_references_are_averaged() -> None:
    references = [["red cat", "green bird"], ["blue dog"]]
    both = cider(["red cat", ""], references)
    one = cider(["red cat", ""], [["red cat", "red cat"], ["blue dog"]])
    assert both == pytest.approx(one / 2)
