from __future__ import annotations

import math

import numpy as np
import pytest
from by_hand import as_ids, counts

from elman.ngrams import statistics
from elman.ngrams.backoff import BackoffModel
from elman.ngrams.config import NgramConfig
from elman.ngrams.counting import count
from elman.ngrams.smoothing import build
from elman.ngrams.statistics import fit, growth, unseen

LINES = [[1, 2, 3], [1, 2, 4], [2, 3], [1, 2, 3, 2]]
NEW = [[1, 2, 3, 3], [5, 2, 3], [], [4]]


def model(order: int = 3) -> BackoffModel:
    return build(count(as_ids(LINES), order, vocab_size=6, boundary_id=0), NgramConfig(order=order))


def test_fit_sums_what_scoring_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = as_ids(NEW * 5)
    expected = -model().score(ids).astype(np.float64)
    for stretch in (3, 1000):
        monkeypatch.setattr(statistics, "_STRETCH", stretch)
        found = fit(model(), ids, unknown_id=5)
        assert found.nats == pytest.approx(expected.sum())
        assert (found.tokens, found.oov) == (len(ids), 5)
        assert found.perplexity == pytest.approx(math.exp(expected.mean()))
        without = expected[ids != 5].mean()
        assert found.perplexity_without_unknown == pytest.approx(math.exp(without))


def test_what_has_no_probability_makes_perplexity_infinite() -> None:
    trie = count(as_ids(LINES), 2, vocab_size=6, boundary_id=0)
    closed = build(trie, NgramConfig(order=2, vocabulary="closed"))
    assert fit(closed, np.array([5])).perplexity == math.inf


def test_unseen_shares_are_those_of_a_dictionary() -> None:
    seen, new = counts(LINES, 3), counts(NEW, 3)
    for row in unseen(model(), as_ids(NEW)):
        length = row["order"]
        mine = {n: c for n, c in new.items() if len(n) == length}
        total = sum(mine.values())
        missing = sum(c for n, c in mine.items() if n not in seen)
        contexts = {n[:-1] for n in seen if len(n) == length}
        missing_contexts = sum(c for n, c in mine.items() if n[:-1] not in contexts)
        assert row["unseen_ngrams"] == pytest.approx(missing / total)
        assert row["unseen_contexts"] == pytest.approx(missing_contexts / total)


def test_growth_counts_ngrams_and_bytes() -> None:
    rows = growth(model())
    assert [row["ngrams"] for row in rows] == model().num_ngrams
    made = model()
    arrays = (made.contexts[:-1], made.leaves, made.words)
    assert rows[-1]["bytes"] == sum(array.nbytes for array in arrays)
