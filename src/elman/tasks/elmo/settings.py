"""Settings of a run of ELMo."""

from __future__ import annotations

from dataclasses import dataclass, field

from elman.runs.trained_run import TrainedRun
from elman.tasks.elmo.model import ElmoConfig
from elman.tokens.tokenizer_config import TokenizerConfig
from elman.train.training_config import ChunkTrainingConfig


@dataclass(frozen=True, kw_only=True)
class ElmoRun(TrainedRun):
    """A run of a bidirectional language model."""

    task: str = "elmo"
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    """How text becomes words."""
    model: ElmoConfig = field(default_factory=ElmoConfig)
    """The model."""
    training: ChunkTrainingConfig = field(default_factory=ChunkTrainingConfig)
