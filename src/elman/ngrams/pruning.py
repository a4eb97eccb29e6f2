"""Leaving n-grams out of a smoothed trie.

Thresholds never fall with the length, so whatever an n-gram stands on, its context and its shorter
self, occurs more often than it and stays.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from elman.ngrams.interpolation import Estimate
from elman.ngrams.trie import CountTrie, Level


def prune(
    trie: CountTrie, estimate: Estimate, dropped: Sequence[NDArray[np.bool_]]
) -> tuple[CountTrie, Estimate]:
    """The trie and its probabilities without the n-grams that `dropped` marks in each level."""
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
    return (
        CountTrie(levels, trie.boundary_id),
        Estimate(probs, backoffs, estimate.details, estimate.notes),
    )
