"""Interpolated smoothing methods in one form.

    P(w | context) = lambda (c(context w) - D) / total  +  gamma(context) P(w | shorter context)

where gamma is the remaining probability mass. The methods differ in the counts c, the discount D,
what is added to the total, and lambda:

    maximum likelihood    D = 0; gamma = 0; an unseen context backs off
    absolute              D = n1 / (n1 + 2 n2) for each order (Ney, Essen and Kneser 1994)
    Kneser-Ney            three discounts for each order; in shorter contexts c is the number of
                          distinct tokens seen before (Chen and Goodman 1998, equation 26)
    Witten-Bell           the number of types seen after the context is added to the total
    Jelinek-Mercer        lambda is fitted on held-out text, by order and frequency of context
    add-delta             delta for every token of the vocabulary is added to the total

The recursion ends in the uniform distribution over the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from elman.base.memory import release_compiler
from elman.base.threads import in_threads
from elman.ngrams.compiled import compiled
from elman.ngrams.trie import MEMORY, Array, CountTrie, Room, spans

_READ_AHEAD = 1 << 12
"""Children whose shorter n-grams' probabilities are read at a time."""

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


@dataclass
class Estimate:
    """Probabilities (not logarithms) of a trie's n-grams, level by level."""

    probs: list[Floats]
    """P(last token | the tokens before it)."""
    backoffs: list[Floats]
    """Back-off weight of each n-gram as a context; 1 if nothing was seen after it. One list fewer:
    the longest n-grams have none."""
    details: dict[str, object] = field(default_factory=dict)
    """Discounts or weights, for the model's `about`."""
    notes: list[str] = field(default_factory=list)
    """Messages for the user."""


def named(lengths: Sequence[int]) -> str:
    """Format ascending lengths of n-grams, as in "1- and 3- to 5-grams"."""
    ranges: list[list[int]] = []
    for length in lengths:
        if ranges and length == ranges[-1][-1] + 1:
            ranges[-1].append(length)
        else:
            ranges.append([length])
    parts = []
    for some in ranges:
        parts += [f"{some[0]}- to {some[-1]}-"] if len(some) > 2 else [f"{n}-" for n in some]
    head = f"{', '.join(parts[:-1])} and " if len(parts) > 1 else ""
    return f"{head}{parts[-1]}grams"


def too_regular(formula: str, lengths: Sequence[int], instead: str) -> list[str]:
    """Return a note about the lengths for which a formula has no result, or no note."""
    text = f"the text is too small or too regular for {formula} of"
    return [f"{text} {named(lengths)}: {instead}"] if lengths else []


@dataclass(frozen=True)
class Rule:
    """How one level is interpolated with the previous one."""

    discounts: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Subtracted from counts of 1, of 2, and of 3 or more."""
    per_type: float = 0.0
    """Added to a context's total for each type seen after it."""
    constant: float = 0.0
    """Added to every context's total."""
    lambdas: tuple[float, ...] = (1.0,)
    """Weight of this level for contexts seen 1, 2-3, 4-7, ... times; the last covers all above."""


def interpolate(
    trie: CountTrie,
    counts: list[Array],
    rules: Sequence[Rule],
    uniform_V: Floats,
    dropped: Sequence[NDArray[np.bool_]],
    num_threads: int | None = None,
    consume: bool = False,
) -> Estimate:
    """Compute the probabilities of all n-grams, shortest first, from `counts`.

    `uniform_V` is the distribution at the end of the recursion. `dropped` marks the pruned n-grams
    of each level; their probability mass goes to the shorter contexts. With `consume`, the counts
    of a level leave the list once they are used; those in memory become its probabilities.
    """
    estimate = Estimate([], [])
    root = np.array([0, trie.vocab_size], np.int32)
    identity = np.arange(trie.vocab_size, dtype=np.int32)
    for length, (level, rule) in enumerate(zip(trie.levels, rules, strict=True), start=1):
        first_child = trie.levels[length - 2].first_child if length > 1 else root
        suffix = level.suffix if length > 1 else identity
        lower = estimate.probs[-1] if length > 1 else uniform_V
        if consume and trie.room is MEMORY:
            probs = counts[length - 1].view(np.float32)
        else:
            probs = trie.room.empty(len(level), np.float32)
        backoffs = trie.room.empty(len(first_child) - 1, np.float32)
        mix_level(
            first_child, counts[length - 1], suffix, lower, dropped[length - 1], rule,
            probs, backoffs, num_threads, room=trie.room,
        )  # fmt: skip
        if consume:
            counts[length - 1] = np.empty(0, np.int32)
            release_compiler(beside=len(level))
        estimate.probs.append(probs)
        if length > 1:
            estimate.backoffs.append(backoffs)
    return estimate


def mix_level(
    first_child: Array,
    counts: Array,
    suffix: Array,
    lower: Floats,
    dropped: NDArray[np.bool_],
    rule: Rule,
    probs: Floats,
    backoffs: Floats,
    num_threads: int | None = None,
    contexts: tuple[int, int] | None = None,
    room: Room = MEMORY,
) -> None:
    """Fill `probs` and `backoffs` of one level, for all contexts or a range of them.

    `probs` can be the memory of `counts`.
    """
    numbers = (*rule.discounts, rule.per_type, rule.constant, np.array(rule.lambdas))

    def mix(span: tuple[int, int]) -> None:
        lowers = np.empty(_READ_AHEAD, np.float32)
        arrays = first_child, counts, suffix, lower, dropped
        _mix(*span, *arrays, *numbers, lowers, probs, backoffs)
        room.relieve()

    share = room.share(len(probs), num_threads)
    in_threads(mix, [contexts] if contexts else spans(first_child, share), num_threads)


@compiled
def _mix(
    start: int, end: int, first_child: Array, counts: Array, suffix: Array, lower: Floats,
    dropped: NDArray[np.bool_], discount_1: float, discount_2: float, discount_3: float,
    per_type: float, constant: float, lambdas: Doubles, lowers: Floats, probs: Floats,
    backoffs: Floats,
) -> None:  # fmt: skip
    begin = stop = np.int64(first_child[start])  # `lowers` are those of children begin to stop - 1
    for context in range(start, end):
        first, last = first_child[context], first_child[context + 1]
        total, num_types = 0, 0
        freed = 0.0
        for child in range(first, last):
            count = counts[child]
            total += count
            if len(dropped) and dropped[child]:
                freed += count
            elif count > 0:
                num_types += 1
                if count == 1:
                    freed += discount_1
                elif count == 2:
                    freed += discount_2
                else:
                    freed += discount_3
        added = per_type * num_types + constant
        weight, gamma, bucket = 0.0, 1.0, 0
        while (total >> (bucket + 1)) > 0 and bucket + 1 < len(lambdas):
            bucket += 1
        if total + added != 0:
            weight = lambdas[bucket] / (total + added)
            gamma = weight * (freed + added) + 1.0 - lambdas[bucket]
        backoffs[context] = gamma
        for child in range(first, last):
            if child == stop:
                # Random reads first, in a plain loop: the CPU overlaps the cache misses.
                begin, stop = stop, min(stop + len(lowers), np.int64(first_child[end]))
                for i in range(begin, stop):
                    lowers[i - begin] = lower[suffix[i]]
            count = counts[child]
            if count == 0:
                kept = 0.0
            elif count == 1:
                kept = 1.0 - discount_1
            elif count == 2:
                kept = 2.0 - discount_2
            else:
                kept = count - discount_3
            probs[child] = weight * kept + gamma * lowers[child - begin]
