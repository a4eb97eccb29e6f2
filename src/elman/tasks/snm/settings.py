"""Settings of the sparse non-negative matrix model."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from elman.base.config import at_least
from elman.base.errors import UsageError
from elman.tasks.counted import CountedRun


@dataclass(frozen=True, kw_only=True)
class SNMConfig:
    """A sparse non-negative matrix of n-grams and skip-grams."""

    kind: Literal["snm"] = "snm"
    order: int = 5
    """Length of the longest n-grams."""
    num_remote: int = 2
    """Skip-grams: maximum number of words before the gap."""
    max_skip: int = 3
    """Skip-grams: maximum number of words in the gap; 0 counts n-grams only."""
    num_adjacent: int = 1
    """Skip-grams: maximum number of words between the gap and the predicted word."""
    across_lines: bool = False
    """Let contexts reach back past the beginning of the line."""
    num_events: int = 500_000
    """Number of words, sampled from the training text, on which the adjustment is fitted."""
    num_epochs: int = 5
    """Passes over these words."""
    learning_rate: float = 0.3
    """Learning rate of the fit (Adagrad)."""
    seed: int = 1
    """Random seed of the fit."""

    def __post_init__(self) -> None:
        at_least("model.order", self.order, 1)
        for name in ("num_remote", "max_skip", "num_adjacent", "num_epochs", "seed"):
            at_least(f"model.{name}", getattr(self, name), 0)
        at_least("model.num_events", self.num_events, 1)
        if not 0 < self.learning_rate < math.inf:
            raise UsageError(f"model.learning_rate cannot be {self.learning_rate}", "0.3 is usual")


@dataclass(frozen=True, kw_only=True)
class SNMRun(CountedRun):
    """A run of a sparse non-negative matrix model."""

    task: str = "snm"
    """What is made: the name of a task."""
    model: SNMConfig = field(default_factory=SNMConfig)
    """The model."""
