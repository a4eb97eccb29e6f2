"""What a run of a language model with labels depends on."""

from __future__ import annotations

from dataclasses import dataclass, field

from elman.objectives.objective_config import RegimeConfig
from elman.runs.trained_run import TrainedRun
from elman.tasks.conditional.model import ConditionalLMConfig
from elman.tokens.tokenizer_config import TokenizerConfig
from elman.train.training_config import SamplingTrainingConfig


@dataclass(frozen=True, kw_only=True)
class ConditionalRun(TrainedRun):
    """A run of a language model that is given a label."""

    task: str = "conditional"
    """What is trained: the name of a task."""
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    """How text becomes tokens."""
    model: ConditionalLMConfig = field(default_factory=ConditionalLMConfig)
    """The model."""
    objective: RegimeConfig = field(default_factory=RegimeConfig)
    """What is minimised."""
    training: SamplingTrainingConfig = field(default_factory=SamplingTrainingConfig)
    """The training loop."""
