"""How much the words of a text matter for its label."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import elman
from elman.tasks.classification.handle import MOST_WORDS, ask_words
from elman.tasks.tagging.handle import ask_probabilities

SPECIMENS = Path(__file__).parents[2] / "runs" / "specimens"


def test_an_effect_is_the_change_without_the_word() -> None:
    classifier = elman.load(SPECIMENS / "format-1-classifier", device="cpu")
    text = "the  pupil found her laptop"
    label = classifier.classify(text).label
    effects = classifier.word_effects(text)
    assert [text[one.start : one.end] for one in effects] == text.split()

    def odds(text: str) -> float:
        p = classifier.classify(text).probabilities[label]
        return math.log2(p / (1 - p))

    assert effects[2].effect == pytest.approx(odds(text) - odds("the  pupil  her laptop"), abs=1e-3)
    answer = ask_words(classifier, text)
    assert answer["label"] == label
    assert len(answer["words"]) == 5


def test_characters_of_a_single_word() -> None:
    classifier = elman.load(SPECIMENS / "format-1-classifier-chars", device="cpu")
    assert [one.end - one.start for one in classifier.word_effects("found")] == [1] * 5
    assert classifier.word_effects("a") == []
    assert classifier.word_effects("a " * (MOST_WORDS + 1)) == []


def test_the_labels_of_a_word() -> None:
    tagger = elman.load(SPECIMENS / "format-1-tagger", device="cpu")
    (word, *_), tags = ask_probabilities(tagger, "the book"), tagger.tag("the book")
    assert (word["word"], word["tag"]) == tags[0]
    shares = list(word["probabilities"].values())
    assert shares == sorted(shares, reverse=True)
    assert max(word["probabilities"], key=word["probabilities"].__getitem__) == tags[0][1]
