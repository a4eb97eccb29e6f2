"""What counting models are made from: order, smoothing, pruning, vocabulary, skip-grams."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from elman.base.config import at_least
from elman.base.errors import UsageError

Smoothing = Literal[
    "kneser-ney",
    "absolute",
    "witten-bell",
    "jelinek-mercer",
    "katz",
    "add-delta",
    "maximum-likelihood",
    "stupid-backoff",
]


@dataclass(frozen=True, kw_only=True)
class NgramConfig:
    """A language model made by counting."""

    kind: Literal["ngram"] = "ngram"
    """A language model made by counting."""
    order: int = 5
    """The length of the longest n-grams: the next token depends on the last order - 1."""
    smoothing: Smoothing = "kneser-ney"
    """How unseen n-grams get their share: kneser-ney (modified and interpolated, as KenLM's),
    absolute, witten-bell, jelinek-mercer (weights fitted to held-out text), katz, add-delta,
    maximum-likelihood, or stupid-backoff (scores, not probabilities)."""
    vocabulary: Literal["open", "closed"] = "open"
    """Whether tokens of the vocabulary that the training text lacks, <unk> among them, get a
    probability (open) or not (closed)."""
    prune: tuple[int, ...] = ()
    """For each order from 1 on, n-grams that occur so often or less are left out; the last number
    holds for the longer ones (0,0,1). They must not fall, and the first is 0."""
    delta: float = 0.01
    """What add-delta adds to every count."""
    fallback_discounts: tuple[float, ...] = (0.5, 1.0, 1.5)
    """Kneser-Ney discounts for counts of 1, 2 and more, where the text is too small or too odd for
    the formula to give any; those of lmplz's --discount_fallback."""
    backoff_factor: float = 0.4
    """What stupid-backoff multiplies by for each token of context that it gives up."""

    def __post_init__(self) -> None:
        if self.order < 1:
            raise UsageError(f"'order' should be 1 or more, not {self.order}", "5 is usual")
        if self.prune and (self.prune[0] != 0 or list(self.prune) != sorted(self.prune)):
            raise UsageError(
                f"'prune' should begin with 0 and never fall, not be {self.prune}",
                "0,0,1 leaves out the trigrams and longer that occur once; rare single tokens are "
                "left out by the tokenizer (min_count)",
            )
        if len(self.prune) > self.order:
            raise UsageError(
                f"'prune' has {len(self.prune)} numbers for {self.order} orders", "give fewer"
            )
        if self.delta <= 0:
            raise UsageError(f"'delta' should be above 0, not {self.delta}", "0.01 is usual")
        if not 0 < self.backoff_factor <= 1:
            raise UsageError(f"'backoff_factor' should lie in 0 to 1, not {self.backoff_factor}")
        discounts = self.fallback_discounts
        if len(discounts) != 3 or any(not 0 < d <= i for i, d in enumerate(discounts, start=1)):
            raise UsageError(
                f"'fallback_discounts' should be three numbers above 0, at most 1, 2 and 3, not "
                f"{discounts}",
                "0.5, 1 and 1.5 are usual",
            )

    def threshold(self, length: int) -> int:
        """N-grams of that length that occur so often or less are left out."""
        return self.prune[min(length, len(self.prune)) - 1] if self.prune else 0


@dataclass(frozen=True, kw_only=True)
class SNMConfig:
    """A sparse non-negative matrix of n-grams and skip-grams."""

    kind: Literal["snm"] = "snm"
    """A sparse non-negative matrix of n-grams and skip-grams."""
    order: int = 5
    """The length of the longest n-grams."""
    num_remote: int = 2
    """Skip-grams: the most words before the gap."""
    max_skip: int = 3
    """Skip-grams: the most words in the gap; 0 for n-grams alone."""
    num_adjacent: int = 1
    """Skip-grams: the most words between the gap and the word that is predicted."""
    across_lines: bool = False
    """Whether contexts go back beyond the beginning of a line."""
    num_events: int = 500_000
    """Words of the text, drawn at random, from which the worth of counts is learnt."""
    num_epochs: int = 5
    """How often these are gone through."""
    learning_rate: float = 0.3
    """The step size of that (Adagrad)."""
    seed: int = 1
    """Where its random numbers begin."""

    def __post_init__(self) -> None:
        at_least("model.order", self.order, 1)
        for name in ("num_remote", "max_skip", "num_adjacent", "num_epochs", "seed"):
            at_least(f"model.{name}", getattr(self, name), 0)
        at_least("model.num_events", self.num_events, 1)
        if not 0 < self.learning_rate < math.inf:
            raise UsageError(f"model.learning_rate cannot be {self.learning_rate}", "0.3 is usual")
