"""The smoothings that interpolate, in one form.

    P(w | context) = lambda (c(context w) - D) / total  +  gamma(context) P(w | shorter context)

where gamma is whatever the first part leaves over. They differ in the counts c, in what is taken
from them (D), in what is added to the total, and in lambda:

    maximum likelihood    D = 0; gamma is 0, and a context that was never seen falls back
    absolute              D = n1 / (n1 + 2 n2) for each order (Ney, Essen and Kneser 1994)
    Kneser-Ney            three discounts for each order, and in the shorter contexts c counts the
                          tokens that can stand before (Chen and Goodman 1998, equation 26)
    Witten-Bell           the kinds of tokens seen after the context are added to the total
    Jelinek-Mercer        lambda is fitted to held-out text, by order and frequency of context
    add-delta             delta for every token of the vocabulary is added to the total

The chain of shorter contexts ends in the uniform distribution over the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from elman.ngrams.compiled import compiled, in_threads
from elman.ngrams.trie import Array, CountTrie, spans

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


@dataclass
class Estimate:
    """Plain probabilities, level by level, of a trie's n-grams."""

    probs: list[Floats]
    """P(last token | the tokens before it)."""
    backoffs: list[Floats]
    """For each n-gram as a context, the factor before the shorter context's probability of a token
    not seen after it; 1 where nothing was seen after it. None for the longest n-grams."""
    details: dict[str, object] = field(default_factory=dict)
    """Figures worth keeping, such as discounts."""
    notes: list[str] = field(default_factory=list)
    """What a user should know."""


def named(lengths: Sequence[int]) -> str:
    """N-grams of some lengths, in ascending order, as in "1- and 3- to 5-grams"."""
    runs: list[list[int]] = []
    for length in lengths:
        if runs and length == runs[-1][-1] + 1:
            runs[-1].append(length)
        else:
            runs.append([length])
    parts = []
    for run in runs:
        parts += [f"{run[0]}- to {run[-1]}-"] if len(run) > 2 else [f"{n}-" for n in run]
    head = f"{', '.join(parts[:-1])} and " if len(parts) > 1 else ""
    return f"{head}{parts[-1]}grams"


@dataclass(frozen=True)
class Rule:
    """How one level is interpolated with the level before."""

    discounts: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Taken from counts of 1, of 2, and of 3 or more."""
    per_kind: float = 0.0
    """Added to a context's total for each kind of token seen after it."""
    constant: float = 0.0
    """Added to every context's total."""
    lambdas: tuple[float, ...] = (1.0,)
    """The weight of this level for contexts seen 1, 2-3, 4-7, ... times; the last holds on."""


def interpolate(
    trie: CountTrie,
    counts: Sequence[Array],
    rules: Sequence[Rule],
    uniform_V: Floats,
    dropped: Sequence[NDArray[np.bool_]],
    num_threads: int | None = None,
) -> Estimate:
    """Probabilities of all n-grams, from the shortest on; `counts` may differ from the trie's.

    `uniform_V` is the distribution at the end of the chain, `dropped` marks the n-grams of each
    level that are pruned: what they would have got goes to the shorter contexts.
    """
    estimate = Estimate([], [])
    root = np.array([0, trie.vocab_size], np.int32)
    identity = np.arange(trie.vocab_size, dtype=np.int32)
    for length, (level, rule) in enumerate(zip(trie.levels, rules, strict=True), start=1):
        first_child = trie.levels[length - 2].first_child if length > 1 else root
        suffix = level.suffix if length > 1 else identity
        lower = estimate.probs[-1] if length > 1 else uniform_V
        probs = trie.room(len(level), np.float32)
        backoffs = trie.room(len(first_child) - 1, np.float32)
        mix_level(
            first_child, counts[length - 1], suffix, lower, dropped[length - 1], rule,
            probs, backoffs, num_threads,
        )  # fmt: skip
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
) -> None:
    """Fill in `probs` and `backoffs` of one level, for all contexts or for a range of them."""
    numbers = (*rule.discounts, rule.per_kind, rule.constant, np.array(rule.lambdas))

    def mix(span: tuple[int, int]) -> None:
        _mix(*span, first_child, counts, suffix, lower, dropped, *numbers, probs, backoffs)

    in_threads(mix, [contexts] if contexts else spans(first_child), num_threads)


@compiled
def _mix(
    start: int,
    end: int,
    first_child: Array,
    counts: Array,
    suffix: Array,
    lower: Floats,
    dropped: NDArray[np.bool_],
    discount_1: float,
    discount_2: float,
    discount_3: float,
    per_kind: float,
    constant: float,
    lambdas: Doubles,
    probs: Floats,
    backoffs: Floats,
) -> None:
    # First all the far-flung reads in one plain loop, which the processor overlaps.
    for child in range(first_child[start], first_child[end]):
        probs[child] = lower[suffix[child]]
    for context in range(start, end):
        first, last = first_child[context], first_child[context + 1]
        total, num_kinds = 0, 0
        freed = 0.0
        for child in range(first, last):
            count = counts[child]
            total += count
            if len(dropped) and dropped[child]:
                freed += count
            elif count > 0:
                num_kinds += 1
                if count == 1:
                    freed += discount_1
                elif count == 2:
                    freed += discount_2
                else:
                    freed += discount_3
        added = per_kind * num_kinds + constant
        if total + added == 0:
            backoffs[context] = 1.0
            continue
        bucket = 0
        while (total >> (bucket + 1)) > 0 and bucket + 1 < len(lambdas):
            bucket += 1
        weight = lambdas[bucket] / (total + added)
        gamma = weight * (freed + added) + 1.0 - lambdas[bucket]
        backoffs[context] = gamma
        for child in range(first, last):
            count = counts[child]
            if count == 0:
                kept = 0.0
            elif count == 1:
                kept = 1.0 - discount_1
            elif count == 2:
                kept = 2.0 - discount_2
            else:
                kept = count - discount_3
            probs[child] = weight * kept + gamma * probs[child]
