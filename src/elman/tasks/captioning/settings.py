"""Settings of a run of a captioner."""

from __future__ import annotations

from dataclasses import dataclass, field

from elman.runs.run_config import SplitData
from elman.tasks.captioning.model import CaptionerConfig
from elman.tasks.conditioned import ConditionedRun


@dataclass(frozen=True, kw_only=True)
class CaptionData(SplitData):
    """Tables of pictures and sentences."""

    pictures: str = ""
    """A folder with pictures, beside those near the table; no others are read."""


@dataclass(frozen=True, kw_only=True)
class CaptionerRun(ConditionedRun):
    """A run of a captioner."""

    task: str = "captioner"
    data: CaptionData = field(default_factory=CaptionData)
    """The data."""
    model: CaptionerConfig = field(default_factory=CaptionerConfig)
    """The model."""
