"""Settings of the n-gram model without a limit on n."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from elman.base.config import at_least
from elman.base.errors import UsageError
from elman.tasks.counted import CountedRun


@dataclass(frozen=True, kw_only=True)
class InfinigramConfig:
    """The longest match in the text, interpolated into a Kneser-Ney model."""

    kind: Literal["infinigram"] = "infinigram"
    order: int = 5
    """Order of the Kneser-Ney model that the longest match is mixed into; 1 is the frequency of
    single tokens."""
    held_out: float = 0.1
    """The share of the text to fit the weights of matches on if there is no validation text; the
    model is then made again from all of the text. 0 uses fixed weights."""

    def __post_init__(self) -> None:
        at_least("model.order", self.order, 1, "use 1 or more; 5 is usual")
        if not 0 <= self.held_out < 1:
            raise UsageError(
                f"'model.held_out' cannot be {self.held_out}", "use a share such as 0.1; 0: none"
            )


@dataclass(frozen=True, kw_only=True)
class InfinigramRun(CountedRun):
    """A run of an n-gram model without a limit on n."""

    task: str = "infinigram"
    """What is made: the name of a task."""
    model: InfinigramConfig = field(default_factory=InfinigramConfig)
    """The model."""
