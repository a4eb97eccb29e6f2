"""How a tokenizer is made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from elman.base.config import at_least


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """Which tokenizer to make from the training text, or to read from a file."""

    kind: Literal["auto", "char", "byte", "word", "pretokenized", "bpe"] = "auto"
    """The unit of text: char, byte, word, bpe, or pretokenized for text whose tokens stand between
    spaces, one sentence per line. auto looks at the text."""
    vocab_size: int = 0
    """The largest vocabulary, special tokens included; 0 fits it to the text. For bpe, the size to
    reach."""
    min_count: int = 0
    """Words or characters seen less often than this are unknown. 0 means 2 for words, so that
    unknown words occur in training, but 1 for characters and for text that has <unk> already."""
    lowercase: bool = False
    """Whether all text is put in lower case first."""
    file: Path | None = None
    """A tokenizer.json to use as it is; the other settings then mean nothing."""

    def __post_init__(self) -> None:
        at_least("tokenizer.vocab_size", self.vocab_size, 0)
        at_least("tokenizer.min_count", self.min_count, 0)
