"""What a run of a captioner depends on."""

from __future__ import annotations

from dataclasses import dataclass, field

from elman.objectives.objective_config import RegimeConfig
from elman.runs.trained_run import TrainedRun
from elman.tasks.captioning.model import CaptionerConfig
from elman.tokens.tokenizer_config import TokenizerConfig
from elman.train.training_config import SamplingTrainingConfig


@dataclass(frozen=True, kw_only=True)
class CaptionerRun(TrainedRun):
    """A run of a captioner."""

    task: str = "captioner"
    """What is trained: the name of a task."""
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    """How text becomes tokens."""
    model: CaptionerConfig = field(default_factory=CaptionerConfig)
    """The model."""
    objective: RegimeConfig = field(default_factory=RegimeConfig)
    """What is minimised."""
    training: SamplingTrainingConfig = field(default_factory=SamplingTrainingConfig)
    """The training loop."""
