"""The base of the configuration of a task that is trained by the loop."""

from __future__ import annotations

from dataclasses import dataclass, field

from elman.runs.run_config import RunConfig, SplitData
from elman.train.optimisers import OptimiserConfig
from elman.train.schedules import ScheduleConfig
from elman.train.training_config import TrainingConfig


@dataclass(frozen=True, kw_only=True)
class TrainedRun(RunConfig):
    """A run of the training loop; each task adds parts, or narrows these."""

    data: SplitData = field(default_factory=SplitData)
    """The data."""
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    """How a gradient becomes an update."""
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    """How the learning rate changes."""
    training: TrainingConfig = field(default_factory=TrainingConfig)
    """The training loop."""
