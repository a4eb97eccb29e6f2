"""Build a back-off model from unsorted lists of n-grams, such as those of an ARPA file.

If the context of an n-gram is not listed, it is added with back-off weight 1 and the probability
that backing off gives it, so no score changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elman.ngrams.backoff import BackoffModel, context_rows, leaf_rows
from elman.ngrams.compiled import compiled
from elman.ngrams.interpolation import Floats


@dataclass
class NgramList:
    """N-grams of one length; logarithms are natural."""

    ids: NDArray[np.int32]
    """(n-grams, length)"""
    logprob: Floats
    """(n-grams,) NaN if the probability is to be computed by backing off."""
    backoff: Floats
    """(n-grams,)"""


class ListedTwice(ValueError):
    def __init__(self, ids: list[int]) -> None:
        super().__init__(f"the n-gram {ids} is listed twice")
        self.ids = ids


def model_of_lists(lists: list[NgramList], boundary_id: int) -> BackoffModel:
    """Build the model; the first list has one n-gram for every id, in order."""
    lists = list(lists)
    while (model := _build(lists, boundary_id)) is None:
        pass
    return model


def _build(lists: list[NgramList], boundary_id: int) -> BackoffModel | None:
    """Build the model, or add missing contexts to one of the lists and return None."""
    vocab_size = len(lists[0].ids)
    words = [np.arange(vocab_size, dtype=np.int32)]
    logprob, backoff = [lists[0].logprob], [lists[0].backoff]
    first_child: list[NDArray[Any]] = []
    starts = [0, vocab_size]
    for length, ngrams in enumerate(lists[1:], start=2):
        parents = np.empty(len(ngrams.ids), np.int64)
        _find_contexts(
            ngrams.ids,
            np.concatenate([*first_child, starts[-1:]]).astype(np.int64),
            np.concatenate(words),
            parents,
        )
        if (parents < 0).any():
            _add_contexts(lists, length - 1, ngrams.ids[parents < 0, :-1])
            return None
        keys = (parents << 32) | ngrams.ids[:, -1]
        order = np.argsort(keys)
        keys = keys[order]
        if (same := np.flatnonzero(keys[1:] == keys[:-1])).size:
            raise ListedTwice(ngrams.ids[order[same[0]]].tolist())
        num_children = np.bincount((keys >> 32) - starts[-2], minlength=starts[-1] - starts[-2])
        first_child.append(np.concatenate([[0], np.cumsum(num_children)[:-1]]) + starts[-1])
        words.append(ngrams.ids[order, -1])
        logprob.append(ngrams.logprob[order])
        backoff.append(ngrams.backoff[order])
        starts.append(starts[-1] + len(keys))
    contexts = context_rows(
        np.concatenate([*first_child, starts[-1:]]),
        np.full(starts[-2] + 1, -1),
        np.concatenate([*logprob[:-1], [0.0]]),
        np.concatenate([*backoff[:-1], [0.0]]),
    )
    leaves = leaf_rows(np.full(starts[-1] - starts[-2], -1), logprob[-1])
    model = BackoffModel(
        contexts=contexts,
        leaves=leaves,
        words=np.concatenate(words),
        level_starts=starts,
        boundary_id=boundary_id,
    )
    model.link()
    return model


def _add_contexts(lists: list[NgramList], length: int, missing: NDArray[np.int32]) -> None:
    ngrams = lists[length - 1]
    added = np.unique(missing, axis=0)
    lists[length - 1] = NgramList(
        np.concatenate([ngrams.ids, added]),
        np.concatenate([ngrams.logprob, np.full(len(added), np.nan, np.float32)]),
        np.concatenate([ngrams.backoff, np.zeros(len(added), np.float32)]),
    )


@compiled
def _find_contexts(
    ids: NDArray[np.int32], first_child: NDArray[Any], words: NDArray[Any], found: NDArray[Any]
) -> None:
    """Set `found` to the entry of each n-gram's context, or -1."""
    for i in range(ids.shape[0]):
        node = np.int64(ids[i, 0])
        for depth in range(1, ids.shape[1] - 1):
            word = ids[i, depth]
            low, high = first_child[node], first_child[node + 1]
            end = high
            while low < high:
                middle = (low + high) >> 1
                if words[middle] < word:
                    low = middle + 1
                else:
                    high = middle
            node = low if low < end and words[low] == word else np.int64(-1)
            if node < 0:
                break
        found[i] = node
