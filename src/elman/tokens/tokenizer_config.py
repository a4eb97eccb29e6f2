"""Settings of a tokenizer, and the table of kinds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from elman.base.config import at_least
from elman.base.errors import UsageError, nearest
from elman.base.tables import Table

KINDS: Table = {
    "char": "elman.tokens.characters:Characters",
    "pretokenized": "elman.tokens.pretokenized:Pretokenized",
    "word": "elman.tokens.words:Words",
    "byte": "elman.tokens.bytes:Bytes",
    "bpe": "elman.tokens.bpe:BytePairs",
}
"""Subclasses of `elman.tokens.kind.Kind`, in the order in which a tokenizer.json is tested."""


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """The tokenizer to train on the training text, or to read from a file."""

    kind: str = "auto"
    """The unit of text: char, byte, word, bpe, or pretokenized for text with tokens separated by
    spaces, one sentence per line. auto looks at the text. package.module:Name is your own."""
    vocab_size: int = 0
    """Maximum vocabulary size, special tokens included; for bpe, the size to reach. 0 chooses one
    from the text."""
    min_count: int = 0
    """Words or characters seen less often than this are unknown. 0 means 2 for words, so that
    unknown words occur in training, but 1 for characters and for text that already has <unk>."""
    lowercase: bool = False
    """Whether to lowercase all text."""
    file: Path | None = None
    """A tokenizer.json to use as it is; it takes no other settings."""

    def __post_init__(self) -> None:
        known = ("auto", *KINDS)
        if self.kind not in known and ":" not in self.kind:
            raise UsageError(f"'tokenizer.kind' cannot be '{self.kind}'", nearest(self.kind, known))
        at_least("tokenizer.vocab_size", self.vocab_size, 0)
        at_least("tokenizer.min_count", self.min_count, 0)


def check_file_alone(*layers: Mapping[str, Any]) -> None:
    """Refuse settings that a tokenizer file makes meaningless, in its own layer or a later one."""
    file = None
    for layer in layers:
        file = layer.get("file", file)
        for f in fields(TokenizerConfig):
            if file and f.name != "file" and layer.get(f.name, f.default) != f.default:
                raise UsageError(
                    f"tokenizer.{f.name} has no effect beside tokenizer.file",
                    f"leave out tokenizer.{f.name}: the file decides it",
                )
