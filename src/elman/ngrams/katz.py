"""Smoothing methods that back off: Katz and stupid backoff.

Katz (1987) discounts counts of 1 to 5 by the Good-Turing estimate and distributes the freed mass
over the tokens not seen after the context, in proportion to the shorter context's probabilities.

Stupid backoff (Brants and others 2007) uses relative frequencies, multiplied by a fixed factor for
each back-off. Its scores do not sum to one. Backing off from an unseen context has factor 1: it
would be the same for every token.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from elman.ngrams.compiled import compiled
from elman.ngrams.interpolation import Doubles, Estimate, Floats, too_regular
from elman.ngrams.kneser_ney import counts_of_counts
from elman.ngrams.trie import Array, CountTrie

LARGEST = 5
"""Counts above this are not discounted."""
FALLBACK = 0.5
"""Discount of counts up to `LARGEST` if the Good-Turing estimate does not exist."""


def good_turing(counts: Array) -> tuple[list[float], bool]:
    """Return the factors for counts of 0 to `LARGEST`, and whether they are Good-Turing's.

    Good-Turing needs n-grams with counts of 1, 2, ... 6, and factors in (0, 1].
    """
    occurring = counts_of_counts(counts, LARGEST + 1)
    if all(occurring[1:]):
        excess = (LARGEST + 1) * occurring[LARGEST + 1] / occurring[1]
        factors = [
            ((r + 1) * occurring[r + 1] / (r * occurring[r]) - excess) / (1 - excess)
            if excess < 1
            else 0.0
            for r in range(1, LARGEST + 1)
        ]
        if all(0 < factor <= 1 for factor in factors):
            return [1.0, *factors], True
    return [1.0, *((r - FALLBACK) / r for r in range(1, LARGEST + 1))], False


def katz(trie: CountTrie, uniform_V: Floats, dropped: Sequence[NDArray[np.bool_]]) -> Estimate:
    """Compute Katz's estimate, in double precision because the freed mass may be tiny."""
    estimate = Estimate([], [])
    lower = np.empty(0)
    missing = []
    for length, level in enumerate(trie.levels, start=1):
        factors, valid = good_turing(level.counts)
        if not valid:
            missing.append(length)
        if length == 1:
            lower = _katz_unigrams(level.counts, np.array(factors), uniform_V)
        else:
            parents = trie.levels[length - 2]
            probs, backoffs = np.empty(len(level)), np.empty(len(parents))
            _back_off(
                parents.first_child, level.counts, level.suffix, lower, dropped[length - 1],
                np.array(factors), probs, backoffs,
            )  # fmt: skip
            estimate.backoffs.append(backoffs.astype(np.float32))
            lower = probs
        estimate.probs.append(lower.astype(np.float32))
    instead = f"{FALLBACK} is subtracted from counts up to {LARGEST} instead"
    estimate.notes += too_regular("Good-Turing discounts", missing, instead)
    return estimate


def stupid_backoff(
    trie: CountTrie, uniform_V: Floats, dropped: Sequence[NDArray[np.bool_]], factor: float
) -> Estimate:
    """Use relative frequencies; unseen tokens get `factor` times the uniform distribution."""
    counts = trie.levels[0].counts
    unigrams = counts / max(1, int(counts.sum()))
    estimate = Estimate([np.where(counts > 0, unigrams, factor * uniform_V).astype(np.float32)], [])
    for parents, level, marks in zip(trie.levels, trie.levels[1:], dropped[1:], strict=False):
        sums = np.concatenate([[0], np.cumsum(level.counts, dtype=np.int64)])[parents.first_child]
        num_children = np.diff(parents.first_child)
        totals = np.repeat(np.diff(sums), num_children)
        kept = np.ones(len(level), np.bool_) if not len(marks) else ~marks
        num_kept = np.diff(np.concatenate([[0], np.cumsum(kept)])[parents.first_child])
        estimate.probs.append((level.counts / totals).astype(np.float32))
        estimate.backoffs.append(np.where(num_kept > 0, factor, 1.0).astype(np.float32))
    return estimate


def _katz_unigrams(counts: Array, factors: Doubles, uniform_V: Floats) -> Doubles:
    """Estimate single tokens; the mass freed by discounts is split equally over unseen ones."""
    total = int(counts.sum())
    unseen = (counts == 0) * uniform_V.astype(np.float64)
    if total == 0:
        return uniform_V.astype(np.float64)
    if not unseen.any():
        return np.asarray(counts / total)
    probs: Doubles = counts * np.append(factors, 1.0)[np.minimum(counts, len(factors))] / total
    if probs.sum() > 1 - 1e-12:
        probs *= total / (total + 1)
    probs += (1 - probs.sum()) * unseen / unseen.sum()
    return probs


@compiled
def _back_off(
    first_child: Array, counts: Array, suffix: Array, lower: Doubles, dropped: NDArray[np.bool_],
    factors: Doubles, probs: Doubles, backoffs: Doubles,
) -> None:  # fmt: skip
    for context in range(len(first_child) - 1):
        first, last = first_child[context], first_child[context + 1]
        total, given, known = 0, 0.0, 0.0
        for child in range(first, last):
            total += counts[child]
        for child in range(first, last):
            count = counts[child]
            factor = factors[count] if count < len(factors) else 1.0
            probs[child] = factor * count / total
            if not (len(dropped) and dropped[child]):
                given += probs[child]
                known += lower[suffix[child]]
        if given == 0:
            backoffs[context] = 1.0
            continue
        scale = 1.0
        if given > 1 - 1e-12:
            # No count was discounted: add one to the total, as SRILM does.
            scale = total / (total + 1.0)
        if 1 - known < 1e-9:
            # Every token was seen after this context: no mass is left to distribute.
            scale = 1.0 / given
            backoffs[context] = 0.0
        else:
            backoffs[context] = (1 - given * scale) / (1 - known)
        for child in range(first, last):
            probs[child] *= scale
