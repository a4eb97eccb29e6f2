"""What an n-gram run depends on. This module needs no torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from elman.ngrams.ngram_config import NgramConfig
from elman.tasks.counted import CountedRun


@dataclass(frozen=True, kw_only=True)
class NgramRun(CountedRun):
    """A run of an n-gram model."""

    task: str = "ngram"
    """What is made: the name of a task."""
    model: NgramConfig = field(default_factory=NgramConfig)
    """The model."""
