"""Maximum likelihood after a context that the training text lacks: 0/0, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elman.evaluate.sequences import score_tokens
from elman.ngrams import statistics
from elman.ngrams.backoff import BackoffModel
from elman.ngrams.counting import count
from elman.ngrams.smoothing import UNDEFINED, build
from elman.ngrams.statistics import num_undefined
from elman.tasks.counted_model import CountedLM
from elman.tasks.ngram.settings import NgramConfig

VOCAB, BOUNDARY = 6, 0
ids = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40)


def model(text: list[int], order: int, smoothing: str = "maximum-likelihood") -> BackoffModel:
    trie = count(np.array(text), order, vocab_size=VOCAB, boundary_id=BOUNDARY)
    return build(trie, NgramConfig(order=order, smoothing=smoothing))  # type: ignore[arg-type]


def context_of(read: list[int], order: int) -> tuple[int, ...]:
    """The last order - 1 tokens, back to the last boundary."""
    context = read[max(0, len(read) - order + 1) :]
    if BOUNDARY in context:
        context = context[len(context) - 1 - context[::-1].index(BOUNDARY) :]
    return tuple(context)


def by_hand(text: list[int], order: int, tested: list[int]) -> list[bool]:
    read = [BOUNDARY, *text]
    seen = {context_of(read[:place], order) for place in range(1, len(read))}
    asked = [BOUNDARY, *tested]
    return [context_of(asked[:place], order) not in seen for place in range(1, len(asked))]


@given(ids, ids, st.integers(2, 4))
@settings(max_examples=60, deadline=None)
def test_undefined_tokens_are_those_after_contexts_never_continued(
    text: list[int], tested: list[int], order: int
) -> None:
    made = model(text, order)
    expected = by_hand(text, order, tested)
    (scores,), _ = score_tokens(CountedLM(made), [tested], previous=BOUNDARY)
    assert scores.undefined == expected
    assert num_undefined(made, np.array(tested)) == sum(expected)
    assert not any(by_hand(text, order, text))


def test_long_texts_are_counted_in_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    made, tested = model(random.integers(0, VOCAB, 60).tolist(), 4), random.integers(0, VOCAB, 300)
    whole = num_undefined(made, tested)
    monkeypatch.setattr(statistics, "_STRETCH", 7 << 3)
    assert num_undefined(made, tested) == whole > 0


def test_other_estimates_are_always_defined() -> None:
    text = [1, 2, 3, 1, 2, 0, 4, 5]
    for made in (model(text, 3, "add-delta"), model(text, 1)):
        assert not made.can_be_undefined
        assert num_undefined(made, np.array([5, 5, 5])) == 0
        assert (
            CountedLM(made).undefined(torch.tensor([[5]]), CountedLM(made).initial_state(1)) is None
        )
    assert UNDEFINED in model(text, 2).about["notes"]
    assert UNDEFINED not in model(text, 1).about["notes"]
