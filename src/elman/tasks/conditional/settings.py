"""Settings of a run of a language model with labels."""

from __future__ import annotations

from dataclasses import dataclass, field

from elman.runs.run_config import RandomSplitData
from elman.tasks.conditional.model import ConditionalLMConfig
from elman.tasks.conditioned import ConditionedRun


@dataclass(frozen=True, kw_only=True)
class ConditionalRun(ConditionedRun):
    """A run of a language model that takes a label."""

    task: str = "conditional"
    data: RandomSplitData = field(default_factory=RandomSplitData)
    model: ConditionalLMConfig = field(default_factory=ConditionalLMConfig)
    """The model."""
