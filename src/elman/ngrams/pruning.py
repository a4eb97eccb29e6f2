"""Drop rare n-grams from a smoothed trie.

Thresholds never decrease with the length, so the context and the suffix of a kept n-gram, which
occur at least as often, are kept too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from elman.ngrams.interpolation import Estimate
from elman.ngrams.trie import CountTrie, Level


def mark_dropped(trie: CountTrie, thresholds: Sequence[int]) -> list[NDArray[np.bool_]]:
    """Mark, for each order, the n-grams with a count up to its threshold; empty if that is 0.

    The last threshold applies to all longer n-grams.
    """
    marks = []
    for length, level in enumerate(trie.levels, start=1):
        threshold = thresholds[min(length, len(thresholds)) - 1] if thresholds else 0
        marks.append(level.counts <= threshold if threshold else np.empty(0, bool))
    return marks


def prune(
    trie: CountTrie, estimate: Estimate, dropped: Sequence[NDArray[np.bool_]]
) -> tuple[CountTrie, Estimate]:
    """Remove the n-grams that `dropped` marks in each level."""
    kept = [
        ~marks if len(marks) else np.ones(len(level), np.bool_)
        for level, marks in zip(trie.levels, dropped, strict=True)
    ]
    levels: list[Level] = []
    new_index = np.empty(0, np.int32)
    for level, keep in zip(trie.levels, kept, strict=True):
        left = Level(level.words[keep], level.counts[keep])
        if levels:
            left.suffix = new_index[level.suffix[keep]]
            parents = trie.levels[len(levels) - 1]
            kept_before = np.concatenate([[0], np.cumsum(keep)])
            first_child = kept_before[parents.first_child][np.append(kept[len(levels) - 1], True)]
            levels[-1].first_child = first_child.astype(np.int32)
        new_index = np.cumsum(keep, dtype=np.int32) - np.int32(1)
        levels.append(left)
    probs = [values[keep] for values, keep in zip(estimate.probs, kept, strict=True)]
    backoffs = [values[keep] for values, keep in zip(estimate.backoffs, kept, strict=False)]
    smaller = Estimate(probs, backoffs, estimate.details, estimate.notes)
    return CountTrie(levels, trie.boundary_id), smaller
