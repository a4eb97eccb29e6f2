"""Settings of a run of a translator."""

from __future__ import annotations

from dataclasses import dataclass, field

from elman.base.config import at_least
from elman.runs.run_config import SplitData
from elman.tasks.conditioned import ConditionedRun
from elman.tasks.translation.model import SequenceToSequenceConfig
from elman.tokens.tokenizer_config import TokenizerConfig


@dataclass(frozen=True, kw_only=True)
class PairData(SplitData):
    """Pairs of lines: a source file and a target file."""

    max_length: int = 250
    """Pairs with more tokens than this on either side are left out of training."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("data.max_length", self.max_length, 1)


@dataclass(frozen=True, kw_only=True)
class PairTokenizerConfig(TokenizerConfig):
    """Which tokenizers to train, or to read from a file."""

    shared: bool = True
    """Whether source and target share one vocabulary."""


@dataclass(frozen=True, kw_only=True)
class TranslatorRun(ConditionedRun):
    """A run of a translator."""

    task: str = "translator"
    data: PairData = field(default_factory=PairData)
    tokenizer: PairTokenizerConfig = field(default_factory=PairTokenizerConfig)
    model: SequenceToSequenceConfig = field(default_factory=SequenceToSequenceConfig)
    """The model."""
