"""Settings of a run of a tagger."""

from __future__ import annotations

from dataclasses import dataclass, field

from elman.base.config import at_least
from elman.runs.run_config import SplitData
from elman.runs.trained_run import TrainedRun
from elman.tasks.tagging.model import TaggerConfig


@dataclass(frozen=True, kw_only=True)
class TaggedData(SplitData):
    """Tagged sentences: CoNLL-U or column files."""

    column: str = ""
    """The column with the tags: a name or a number from 1. Empty: upos of CoNLL-U, or the last."""


@dataclass(frozen=True, kw_only=True)
class WordsConfig:
    """Which words of the training data are in the vocabulary."""

    vocab_size: int = 0
    """The largest number of words; 0: no limit."""
    min_count: int = 0
    """Words seen less often than this are unknown."""
    lowercase: bool = True
    """Whether words are looked up in lower case."""

    def __post_init__(self) -> None:
        at_least("tokenizer.vocab_size", self.vocab_size, 0)
        at_least("tokenizer.min_count", self.min_count, 0)


@dataclass(frozen=True, kw_only=True)
class TaggerRun(TrainedRun):
    """A run of a tagger."""

    task: str = "tagger"
    data: TaggedData = field(default_factory=TaggedData)
    tokenizer: WordsConfig = field(default_factory=WordsConfig)
    """The vocabulary of words."""
    model: TaggerConfig = field(default_factory=TaggerConfig)
    """The model."""
