"""Counts become probabilities: the table of smoothings, and what each of them is made of.

Small or odd text never stops an estimate: where a formula has no answer, a documented stand-in
takes its place and a note says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from elman.ngrams.backoff import BackoffModel
from elman.ngrams.counting import Ids
from elman.ngrams.interpolation import Estimate, Floats, Rule, interpolate, mix_level, named
from elman.ngrams.jelinek_mercer import fit_lambdas
from elman.ngrams.katz import katz, stupid_backoff
from elman.ngrams.kneser_ney import adjusted_counts, counts_of_counts, kneser_ney_discounts
from elman.ngrams.ngram_config import NgramConfig
from elman.ngrams.pruning import prune
from elman.ngrams.trie import CountTrie

ABSOLUTE_DISCOUNT = 0.5
"""The discount where a text has no n-grams that occur once, or none that occur twice."""

NOT_PROBABILITIES = (
    "stupid-backoff gives scores that do not sum to one: no perplexity or probability of it can be "
    "compared with another model's"
)


@dataclass(frozen=True)
class Counted:
    """All that an estimate starts from."""

    trie: CountTrie
    config: NgramConfig
    uniform_V: Floats
    """The distribution that knows nothing: over the vocabulary, or over the tokens seen."""
    dropped: list[NDArray[np.bool_]]
    """For each order, which n-grams are pruned; empty where none are."""
    last: Sequence[int] = ()
    """The n-gram that lmplz meets last: see `kneser_ney`."""
    held_out: Ids | None = None
    """Text to fit weights to, that was not counted."""
    num_threads: int | None = None

    def interpolated(self, counts: Sequence[NDArray[np.int32]], rules: Sequence[Rule]) -> Estimate:
        """Interpolate every level by its rule."""
        return interpolate(self.trie, counts, rules, self.uniform_V, self.dropped, self.num_threads)

    @property
    def counts(self) -> list[NDArray[np.int32]]:
        """How often each n-gram occurs, by order."""
        return [level.counts for level in self.trie.levels]


def estimate(
    trie: CountTrie,
    config: NgramConfig,
    *,
    last: Sequence[int] = (),
    held_out: Ids | None = None,
    num_threads: int | None = None,
) -> tuple[CountTrie, Estimate]:
    """The probabilities of a trie's n-grams, and the trie of those that pruning leaves."""
    seen_V = trie.levels[0].counts > 0
    if config.vocabulary == "open" or not seen_V.any():
        seen_V = np.ones(trie.vocab_size, np.bool_)
    dropped = [
        level.counts <= threshold if (threshold := config.threshold(length)) else np.empty(0, bool)
        for length, level in enumerate(trie.levels, start=1)
    ]
    uniform_V = (seen_V / seen_V.sum()).astype(np.float32)
    counted = Counted(trie, config, uniform_V, dropped, last, held_out, num_threads)
    found = SMOOTHINGS[config.smoothing](counted)
    return prune(trie, found, dropped) if config.prune else (trie, found)


def about(config: NgramConfig, found: Estimate) -> dict[str, object]:
    """What a model says about how it was made."""
    return {
        "smoothing": config.smoothing,
        "vocabulary": config.vocabulary,
        "prune": list(config.prune),
        "normalised": config.smoothing != "stupid-backoff",
        **found.details,
        "notes": found.notes,
    }


def build(trie: CountTrie, config: NgramConfig, **settings: object) -> BackoffModel:
    """A model in memory; the settings are those of `estimate`."""
    left, found = estimate(trie, config, **settings)  # type: ignore[arg-type]
    return BackoffModel.assemble(left, found, about(config, found))


def _kneser_ney(counted: Counted) -> Estimate:
    trie, config = counted.trie, counted.config
    counts = adjusted_counts(trie, counted.num_threads)
    discounts = kneser_ney_discounts(trie, counts, counted.last)
    first, second, third = config.fallback_discounts
    chosen = [found or (first, second, third) for found in discounts]
    estimate = counted.interpolated(counts, [Rule(discounts=found) for found in chosen])
    estimate.details["discounts"] = [list(found) for found in chosen]
    if missing := [n for n, found in enumerate(discounts, start=1) if not found]:
        estimate.notes.append(
            f"the text is too small or too regular for Kneser-Ney's discounts of {named(missing)}: "
            f"{first:g}, {second:g} and {third:g} are used instead"
        )
    return estimate


def _absolute(counted: Counted) -> Estimate:
    discounts, missing = [], []
    for length, counts in enumerate(counted.counts, start=1):
        n1, n2 = counts_of_counts(counts, 2)[1:]
        discounts.append(n1 / (n1 + 2 * n2) if n1 and n2 else ABSOLUTE_DISCOUNT)
        if not (n1 and n2):
            missing.append(length)
    rules = [Rule(discounts=(discount, discount, discount)) for discount in discounts]
    estimate = counted.interpolated(counted.counts, rules)
    estimate.details["discounts"] = discounts
    if missing:
        estimate.notes.append(
            f"the text is too small or too regular for the discount of {named(missing)}: "
            f"{ABSOLUTE_DISCOUNT} is used instead"
        )
    return estimate


def _witten_bell(counted: Counted) -> Estimate:
    return counted.interpolated(counted.counts, [Rule(per_kind=1.0)] * counted.trie.order)


def _maximum_likelihood(counted: Counted) -> Estimate:
    return counted.interpolated(counted.counts, [Rule()] * counted.trie.order)


def _jelinek_mercer(counted: Counted) -> Estimate:
    plain = _maximum_likelihood(replace(counted, dropped=[np.empty(0, bool)] * counted.trie.order))
    lambdas, note = fit_lambdas(counted.trie, plain, counted.uniform_V, counted.held_out)
    estimate = counted.interpolated(
        counted.counts, [Rule(lambdas=tuple(weights)) for weights in lambdas]
    )
    estimate.details["lambdas"] = lambdas
    estimate.notes.append(note)
    return estimate


def _add_delta(counted: Counted) -> Estimate:
    """(c + delta) / (total + delta V) after the last order - 1 tokens, or as many as the line has.

    Shorter contexts within a line take no part: after a context never seen all tokens are alike.
    """
    trie, uniform_V = counted.trie, counted.uniform_V
    rule = Rule(constant=counted.config.delta * float((uniform_V > 0).sum()))
    if trie.order == 1:
        return counted.interpolated(counted.counts, [rule])
    estimate = Estimate([uniform_V], [], {"delta": counted.config.delta})
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
    factor = counted.config.backoff_factor
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
