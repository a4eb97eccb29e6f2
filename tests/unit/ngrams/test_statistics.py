from __future__ import annotations

import math

import numpy as np
import pytest
from by_hand import as_ids, counts

from elman.ngrams import statistics
from elman.ngrams.backoff import BackoffModel
from elman.ngrams.counting import count
from elman.ngrams.smoothing import build
from elman.ngrams.statistics import fit, unseen
from elman.ngrams.trie import CountTrie
from elman.tasks.ngram.settings import NgramConfig

LINES = [[1, 2, 3], [1, 2, 4], [2, 3], [1, 2, 3, 2]]
NEW = [[1, 2, 3, 3], [5, 2, 3], [], [4]]


def trie(order: int) -> CountTrie:
    return count(as_ids(LINES), order, vocab_size=6, boundary_id=0)


def model(order: int = 3) -> BackoffModel:
    return build(trie(order), NgramConfig(order=order))


def test_fit_sums_what_scoring_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = as_ids(NEW * 5)
    expected = -model().score(ids).astype(np.float64)
    for stretch in (3, 1000):
        monkeypatch.setattr(statistics, "_STRETCH", stretch)
        found = fit(model(), ids, unknown_id=5)
        assert found.nats == pytest.approx(expected.sum())
        assert (found.tokens, found.oov) == (len(ids), 5)
        assert found.perplexity == pytest.approx(math.exp(expected.mean()))


def test_what_has_no_probability_makes_perplexity_infinite() -> None:
    closed = build(trie(2), NgramConfig(order=2, vocabulary="closed"))
    found = fit(closed, np.array([5, 1, 5]))
    assert found.perplexity == math.inf
    assert found.impossible == 2
    assert fit(closed, np.array([1])).impossible == 0


@pytest.mark.parametrize("order", [1, 3])
@pytest.mark.parametrize("stretch", [8, 1 << 21])
def test_unseen_shares_are_those_of_a_dictionary(
    monkeypatch: pytest.MonkeyPatch, order: int, stretch: int
) -> None:
    monkeypatch.setattr(statistics, "_STRETCH", stretch)
    seen, new = counts(LINES, order), counts(NEW, order)
    for row in unseen(trie(order), as_ids(NEW)):
        length = row["order"]
        mine = {n: c for n, c in new.items() if len(n) == length}
        total = sum(mine.values())
        missing = sum(c for n, c in mine.items() if n not in seen)
        contexts = {n[:-1] for n in seen if len(n) == length}
        missing_contexts = sum(c for n, c in mine.items() if n[:-1] not in contexts)
        assert row["ngrams"] == total
        assert row["unseen_ngrams"] == pytest.approx(missing / total)
        assert row["unseen_contexts"] == pytest.approx(missing_contexts / total)


def test_a_model_is_asked_for_what_it_lists() -> None:
    # Token 5 is of the vocabulary, though not of the text: a model lists it all the same.
    ids = as_ids([line for line in NEW if 5 not in line])
    assert unseen(model(), ids) == unseen(trie(3), ids)
    pruned = build(trie(3), NgramConfig(order=3, prune=(0, 5)))
    rows = unseen(pruned, as_ids(LINES))
    assert [row["unseen_ngrams"] for row in rows] == [0.0, 1.0, 1.0]
    assert [row["unseen_ngrams"] for row in unseen(trie(3), as_ids(LINES))] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("order", [1, 2])
def test_unknown_tokens_are_unseen_though_the_text_had_the_mark(order: int) -> None:
    ids = as_ids([[1, 2, 3], [2, 3, 4]])
    for known in (trie(order), model(order)):
        rows = unseen(known, ids, unknown_id=3)
        assert rows[0]["unseen_ngrams"] == pytest.approx(2 / 8)
        # "2 3", "3 end", "2 3", "3 4" have it; of their contexts, the second's and the fourth's.
        for row in rows[1:]:
            assert row["unseen_ngrams"] >= 4 / 8
            assert row["unseen_contexts"] == pytest.approx(2 / 8)


def test_growth_counts_ngrams_and_bytes() -> None:
    rows = model().growth()
    assert [row["ngrams"] for row in rows] == model().num_ngrams
    made = model()
    arrays = (made.contexts[:-1], made.leaves, made.words)
    assert rows[-1]["bytes"] == sum(array.nbytes for array in arrays)
