"""Turn counts into probabilities: the table of smoothing methods.

Each method maps `Counted` (a trie of counts and its settings) to an `Estimate`. The interpolated
methods share `interpolation`; `katz` holds those that back off. If a text is too small or too
regular for a method's formula, a fixed fallback is used and a note says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from elman.ngrams.backoff import BackoffModel
from elman.ngrams.counting import Ids
from elman.ngrams.interpolation import Estimate, Floats, Rule, interpolate, mix_level, too_regular
from elman.ngrams.jelinek_mercer import fit_lambdas
from elman.ngrams.katz import katz, stupid_backoff
from elman.ngrams.kneser_ney import (
    adjusted_counts,
    counts_of_counts,
    kneser_ney_discounts,
    last_counts,
)
from elman.ngrams.trie import MEMORY, CountTrie, Level

ABSOLUTE_DISCOUNT = 0.5
"""Fallback discount if no n-gram of an order occurs once, or none occurs twice."""

NOT_PROBABILITIES = (
    "stupid-backoff gives scores that do not sum to one: do not compare its perplexity or "
    "probabilities with another model's"
)

UNDEFINED = (
    "maximum likelihood is undefined (0/0) after a context that the training text lacks; the "
    "longest shorter context that it has is used there"
)


class Smoothing(Protocol):
    """The settings that an estimate depends on."""

    @property
    def smoothing(self) -> str: ...  # a key of SMOOTHINGS

    @property
    def vocabulary(self) -> str: ...  # "open" or "closed"

    @property
    def prune(self) -> Sequence[int]: ...  # pruning threshold by order

    @property
    def delta(self) -> float: ...  # of add-delta

    @property
    def fallback_discounts(self) -> Sequence[float]: ...  # of kneser-ney

    @property
    def backoff_factor(self) -> float: ...  # of stupid-backoff


@dataclass(frozen=True)
class KneserNey:
    """Interpolated modified Kneser-Ney smoothing of all n-grams."""

    smoothing: str = "kneser-ney"
    vocabulary: str = "open"
    prune: tuple[int, ...] = ()
    delta: float = 0.0
    fallback_discounts: tuple[float, ...] = (0.5, 1.0, 1.5)
    backoff_factor: float = 1.0


@dataclass(frozen=True)
class Counted:
    """The input of a smoothing method."""

    trie: CountTrie
    settings: Smoothing
    uniform_V: Floats
    """Uniform over the vocabulary, or over the tokens of the text if the vocabulary is closed."""
    dropped: list[NDArray[np.bool_]]
    """For each order, a mask of the pruned n-grams; empty if none are."""
    last: Sequence[int] = ()
    """The n-gram that lmplz processes last: see `kneser_ney`."""
    held_out: Ids | None = None
    """Uncounted text, to fit weights on."""
    num_threads: int | None = None
    consume: bool = False
    """Whether to free counts once they are used, and to overwrite those in memory."""

    def interpolated(
        self, rules: Sequence[Rule], counts: list[NDArray[np.int32]] | None = None
    ) -> Estimate:
        """Interpolate each level by its rule; `counts` replaces the trie's own."""
        used = counts or self.counts
        return interpolate(
            self.trie, used, rules, self.uniform_V, self.dropped, self.num_threads, self.consume
        )

    @property
    def counts(self) -> list[NDArray[np.int32]]:
        return [level.counts for level in self.trie.levels]


def estimate(
    trie: CountTrie,
    settings: Smoothing,
    *,
    last: Sequence[int] = (),
    held_out: Ids | None = None,
    num_threads: int | None = None,
    consume: bool = False,
) -> tuple[CountTrie, Estimate]:
    """Estimate the probabilities of a trie's n-grams; also return the trie left after pruning.

    With `consume`, the counts of the trie are freed or overwritten where they are not needed again.
    """
    seen_V = trie.levels[0].counts > 0
    if settings.vocabulary == "open" or not seen_V.any():
        seen_V = np.ones(trie.vocab_size, np.bool_)
    dropped = _mark_dropped(trie, settings.prune)
    uniform_V = (seen_V / seen_V.sum()).astype(np.float32)
    # Of the other methods some read counts twice, and pruning reads them at the end.
    consume = consume and settings.smoothing == "kneser-ney" and not settings.prune
    counted = Counted(trie, settings, uniform_V, dropped, last, held_out, num_threads, consume)
    found = SMOOTHINGS[settings.smoothing](counted)
    return _prune(trie, found, dropped) if settings.prune else (trie, found)


def _mark_dropped(trie: CountTrie, thresholds: Sequence[int]) -> list[NDArray[np.bool_]]:
    """Mark, for each order, the n-grams with a count up to its threshold; empty if that is 0.

    The last threshold applies to all longer n-grams.
    """
    marks = []
    for length, level in enumerate(trie.levels, start=1):
        threshold = thresholds[min(length, len(thresholds)) - 1] if thresholds else 0
        marks.append(level.counts <= threshold if threshold else np.empty(0, bool))
    return marks


def _prune(
    trie: CountTrie, estimate: Estimate, dropped: Sequence[NDArray[np.bool_]]
) -> tuple[CountTrie, Estimate]:
    """Remove the n-grams that `dropped` marks in each level.

    Thresholds never decrease with the length, so the context and the suffix of a kept n-gram, which
    occur at least as often, are kept too.
    """
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


def about(settings: Smoothing, found: Estimate) -> dict[str, object]:
    """Return the `about` entry of a model: its settings, discounts or weights, and notes."""
    return {
        "smoothing": settings.smoothing,
        "vocabulary": settings.vocabulary,
        "prune": list(settings.prune),
        "normalised": settings.smoothing != "stupid-backoff",
        **found.details,
        "notes": found.notes,
    }


def build(trie: CountTrie, settings: Smoothing, **options: object) -> BackoffModel:
    """Estimate a model in memory; `options` are keyword arguments of `estimate`."""
    left, found = estimate(trie, settings, **options)  # type: ignore[arg-type]
    return BackoffModel.assemble(left, found, about(settings, found))


def _kneser_ney(counted: Counted) -> Estimate:
    trie, num_threads = counted.trie, counted.num_threads
    last = last_counts(trie, counted.last)
    overwrite = counted.consume and trie.room is MEMORY
    counts = adjusted_counts(trie, num_threads, overwrite=overwrite)
    discounts = kneser_ney_discounts(trie, counts, last, num_threads)
    first, second, third = counted.settings.fallback_discounts
    chosen = [found or (first, second, third) for found in discounts]
    if counted.consume:
        for level in trie.levels:
            level.counts = np.empty(0, np.int32)
    estimate = counted.interpolated([Rule(discounts=found) for found in chosen], counts)
    estimate.details["discounts"] = [list(found) for found in chosen]
    missing = [n for n, found in enumerate(discounts, start=1) if not found]
    instead = f"{first:g}, {second:g} and {third:g} are used instead"
    estimate.notes += too_regular("Kneser-Ney's discounts", missing, instead)
    return estimate


def _absolute(counted: Counted) -> Estimate:
    discounts, missing = [], []
    for length, counts in enumerate(counted.counts, start=1):
        n1, n2 = counts_of_counts(counts, 2)[1:]
        discounts.append(n1 / (n1 + 2 * n2) if n1 and n2 else ABSOLUTE_DISCOUNT)
        if not (n1 and n2):
            missing.append(length)
    estimate = counted.interpolated([Rule(discounts=(d, d, d)) for d in discounts])
    estimate.details["discounts"] = discounts
    instead = f"{ABSOLUTE_DISCOUNT} is used instead"
    estimate.notes += too_regular("the discount", missing, instead)
    return estimate


def _witten_bell(counted: Counted) -> Estimate:
    return counted.interpolated([Rule(per_type=1.0)] * counted.trie.order)


def _maximum_likelihood(counted: Counted) -> Estimate:
    estimate = counted.interpolated([Rule()] * counted.trie.order)
    estimate.notes += [UNDEFINED] if counted.trie.order > 1 else []
    return estimate


def _jelinek_mercer(counted: Counted) -> Estimate:
    plain = _maximum_likelihood(replace(counted, dropped=[np.empty(0, bool)] * counted.trie.order))
    lambdas, note = fit_lambdas(counted.trie, plain, counted.uniform_V, counted.held_out)
    estimate = counted.interpolated([Rule(lambdas=tuple(weights)) for weights in lambdas])
    estimate.details["lambdas"] = lambdas
    estimate.notes.append(note)
    return estimate


def _add_delta(counted: Counted) -> Estimate:
    """Estimate (c + delta) / (total + delta V) after the longest context that the line allows.

    Shorter contexts within a line are not used: after an unseen context all tokens are equally
    likely.
    """
    trie, uniform_V, delta = counted.trie, counted.uniform_V, counted.settings.delta
    rule = Rule(constant=delta * float((uniform_V > 0).sum()))
    if trie.order == 1:
        return counted.interpolated([rule])
    estimate = Estimate([uniform_V], [], {"delta": delta})
    for length, level in enumerate(trie.levels[1:], start=2):
        parents = trie.levels[length - 2]
        probs, backoffs = uniform_V[level.words], np.ones(len(parents), np.float32)
        contexts = None if length == trie.order else trie.line_starts(length - 1)
        mix_level(
            parents.first_child, level.counts, level.words, uniform_V, counted.dropped[length - 1],
            rule, probs, backoffs, counted.num_threads, contexts,
        )  # fmt: skip
        estimate.probs.append(probs)
        estimate.backoffs.append(backoffs)
    return estimate


def _katz(counted: Counted) -> Estimate:
    return katz(counted.trie, counted.uniform_V, counted.dropped)


def _stupid_backoff(counted: Counted) -> Estimate:
    factor = counted.settings.backoff_factor
    estimate = stupid_backoff(counted.trie, counted.uniform_V, counted.dropped, factor)
    estimate.notes.append(NOT_PROBABILITIES)
    return estimate


SMOOTHINGS: dict[str, Callable[[Counted], Estimate]] = {
    "kneser-ney": _kneser_ney,
    "absolute": _absolute,
    "witten-bell": _witten_bell,
    "jelinek-mercer": _jelinek_mercer,
    "katz": _katz,
    "add-delta": _add_delta,
    "maximum-likelihood": _maximum_likelihood,
    "stupid-backoff": _stupid_backoff,
}
