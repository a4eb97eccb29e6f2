"""Settings of the neural language models."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from elman.base.config import UnreadSetting
from elman.models.recurrent import RecurrentLMConfig
from elman.objectives.objective_config import RegimeConfig
from elman.runs.run_config import SplitData
from elman.runs.trained_run import TrainedRun
from elman.tasks.language_model.maxent import MaxEntLMConfig
from elman.tasks.language_model.window import WindowLMConfig
from elman.tokens.tokenizer_config import TokenizerConfig
from elman.train.training_config import LaneTrainingConfig

MODELS = {
    "recurrent": "elman.models.recurrent:RecurrentLMConfig",
    "window": "elman.tasks.language_model.window:WindowLMConfig",
    "maxent": "elman.tasks.language_model.maxent:MaxEntLMConfig",
}
ModelConfig = RecurrentLMConfig | WindowLMConfig | MaxEntLMConfig


@dataclass(frozen=True, kw_only=True)
class LanguageData(SplitData):
    """Text of a language model."""

    unit: Literal["text", "line"] = "text"
    """What is read from a fresh state: the whole text, or each line by itself, as a sentence."""


@dataclass(frozen=True, kw_only=True)
class LanguageModelRun(TrainedRun):
    """A run of a neural language model, a recurrent one by default."""

    task: str = "lm"
    data: LanguageData = field(default_factory=LanguageData)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    """How text becomes tokens."""
    model: ModelConfig = field(default_factory=RecurrentLMConfig, metadata={"table": MODELS})
    """The model."""
    objective: RegimeConfig = field(default_factory=RegimeConfig)
    """What is minimised."""
    training: LaneTrainingConfig = field(default_factory=LaneTrainingConfig)

    def __post_init__(self) -> None:
        for name in ("vary_chunks", "shuffle_lanes", "reset_state"):
            if self.data.unit == "line" and getattr(self.training, name):
                raise UnreadSetting(f"training.{name}", "leave it out, or set data.unit to text")


@dataclass(frozen=True, kw_only=True)
class WindowRun(LanguageModelRun):
    """A run of a fixed-window language model."""

    task: str = "window"
    model: ModelConfig = field(default_factory=WindowLMConfig, metadata={"table": MODELS})


@dataclass(frozen=True, kw_only=True)
class MaxEntRun(LanguageModelRun):
    """A run of a maximum-entropy language model."""

    task: str = "maxent"
    model: ModelConfig = field(default_factory=MaxEntLMConfig, metadata={"table": MODELS})
