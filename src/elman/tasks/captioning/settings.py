"""Settings of a run of a captioner."""

from __future__ import annotations

from dataclasses import dataclass, field

from elman.tasks.captioning.model import CaptionerConfig
from elman.tasks.conditioned import ConditionedRun


@dataclass(frozen=True, kw_only=True)
class CaptionerRun(ConditionedRun):
    """A run of a captioner."""

    task: str = "captioner"
    model: CaptionerConfig = field(default_factory=CaptionerConfig)
    """The model."""
