"""Settings of the n-gram model: order, smoothing, pruning, vocabulary."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from elman.base.config import at_least, check_reads
from elman.base.errors import UsageError
from elman.runs.run_config import TextData
from elman.tasks.counted import CountedRun

Method = Literal[
    "kneser-ney",
    "absolute",
    "witten-bell",
    "jelinek-mercer",
    "katz",
    "add-delta",
    "maximum-likelihood",
    "stupid-backoff",
]
"""The keys of `elman.ngrams.smoothing.SMOOTHINGS`."""


HELD_OUT = 0.1
"""The share of the text to hold out where a smoothing fits weights and no validation text is
given."""

READS = {
    "kneser-ney": ["fallback_discounts"],
    "add-delta": ["delta"],
    "stupid-backoff": ["backoff_factor"],
}
"""Settings that one method alone reads."""


@dataclass(frozen=True, kw_only=True)
class NgramConfig:
    """A language model made by counting n-grams."""

    kind: Literal["ngram"] = "ngram"
    order: int = 5
    """Length of the longest n-grams: the next token depends on the last order - 1."""
    smoothing: Method = "kneser-ney"
    """How to estimate unseen n-grams: kneser-ney (modified and interpolated, as in KenLM),
    absolute, witten-bell, jelinek-mercer (weights fitted on held-out text), katz, add-delta,
    maximum-likelihood, or stupid-backoff (scores, not probabilities)."""
    vocabulary: Literal["open", "closed"] = "open"
    """open gives a probability to tokens that the training text lacks, <unk> among them; closed
    does not."""
    prune: tuple[int, ...] = ()
    """Pruning threshold of each order from 1 on: n-grams with this count or less are dropped. The
    last number applies to all longer n-grams (0,0,1). Begins with 0 and never decreases."""
    delta: float = 0.01
    """Added to every count by add-delta."""
    fallback_discounts: tuple[float, ...] = (0.5, 1.0, 1.5)
    """Kneser-Ney discounts for counts of 1, 2 and 3 or more, used if the text is too small or too
    regular for the formula; the defaults of lmplz's --discount_fallback."""
    backoff_factor: float = 0.4
    """Factor of stupid-backoff for each token of context that it drops."""

    def __post_init__(self) -> None:
        at_least("model.order", self.order, 1, "use 1 or more; 5 is usual")
        if self.prune and (self.prune[0] != 0 or list(self.prune) != sorted(self.prune)):
            raise UsageError(
                f"'prune' should begin with 0 and never decrease, not be {self.prune}",
                "0,0,1 drops trigrams and longer n-grams that occur once; to drop rare words, set "
                "tokenizer.min_count",
            )
        if len(self.prune) > self.order:
            raise UsageError(
                f"'prune' has {len(self.prune)} numbers for {self.order} orders", "give fewer"
            )
        if self.delta <= 0:
            raise UsageError(f"'delta' should be above 0, not {self.delta}", "0.01 is usual")
        if not 0 < self.backoff_factor <= 1:
            raise UsageError(
                f"'backoff_factor' should be in (0, 1], not {self.backoff_factor}", "try 0.4"
            )
        discounts = self.fallback_discounts
        if len(discounts) != 3 or any(not 0 < d <= i for i, d in enumerate(discounts, start=1)):
            raise UsageError(
                f"'fallback_discounts' should be three numbers above 0, at most 1, 2 and 3, not "
                f"{discounts}",
                "0.5, 1 and 1.5 are usual",
            )
        check_reads(self, "model", "smoothing", READS)


@dataclass(frozen=True, kw_only=True)
class NgramData(TextData):
    """Data of which the end can be held out."""

    valid_fraction: float = 0.0
    """The share of the training data, at its end, to validate on instead of counting it, if no
    validation data is given; 0 counts all of it."""

    def __post_init__(self) -> None:
        if not 0 <= self.valid_fraction < 1:
            raise UsageError(
                f"'data.valid_fraction' cannot be {self.valid_fraction}", "use a value in [0, 1)"
            )


@dataclass(frozen=True, kw_only=True)
class NgramRun(CountedRun):
    """A run of an n-gram model."""

    task: str = "ngram"
    """What is made: the name of a task."""
    data: NgramData = field(default_factory=NgramData)
    """The data."""
    model: NgramConfig = field(default_factory=NgramConfig)
    """The model."""

    @property
    def held_out(self) -> float:
        """The share of the text that is not counted."""
        if self.data.valid:
            return 0.0
        fits = self.model.smoothing == "jelinek-mercer"
        return self.data.valid_fraction or (HELD_OUT if fits else 0.0)
