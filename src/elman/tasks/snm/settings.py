"""What a run of a sparse non-negative matrix model depends on. This module needs no torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from elman.ngrams.ngram_config import SNMConfig
from elman.tasks.counted import CountedRun


@dataclass(frozen=True, kw_only=True)
class SNMRun(CountedRun):
    """A run of a sparse non-negative matrix model."""

    task: str = "snm"
    """What is made: the name of a task."""
    model: SNMConfig = field(default_factory=SNMConfig)
    """The model."""
