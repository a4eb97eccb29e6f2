"""Settings of a tokenizer, and the table of kinds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from elman.base.config import at_least, refuse_unread
from elman.base.errors import UsageError, nearest
from elman.base.tables import Table

KINDS: Table = {
    "char": "elman.tokens.characters:Characters",
    "pretokenized": "elman.tokens.pretokenized:Pretokenized",
    "word": "elman.tokens.words:Words",
    "byte": "elman.tokens.bytes:Bytes",
    "bpe": "elman.tokens.bpe:BytePairs",
    "sentencepiece": "elman.tokens.sentence_pieces:SentencePieces",
}
"""Subclasses of `elman.tokens.kind.Kind`, in the order in which a tokenizer.json is tested."""

UNREAD = {
    "byte": ("vocab_size", "min_count"),
    "bpe": ("min_count",),
    "sentencepiece": ("min_count",),
}
"""Settings that a kind does not read."""


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """The tokenizer to train on the training text, or to read from a file."""

    kind: str = "auto"
    """The unit of text: char, byte, word, bpe, sentencepiece (sub-words of a line, by a unigram
    model), or pretokenized for text with tokens separated by spaces, one sentence per line. auto
    looks at the text. package.module:Name is your own."""
    vocab_size: int = 0
    """Maximum vocabulary size, special tokens included; for bpe and sentencepiece, the size to
    reach. 0 chooses one from the text."""
    min_count: int = 0
    """Words or characters seen less often than this are unknown. 0 means 2 for words, so that
    unknown words occur in training, but 1 for characters and for text that already has <unk>."""
    lowercase: bool = False
    """Whether to lowercase all text."""
    file: Path | None = None
    """A tokenizer.json, or a .model of SentencePiece, to use as it is; its kind is recorded, the
    other settings are not read."""

    def __post_init__(self) -> None:
        known = ("auto", *KINDS)
        if self.kind not in known and ":" not in self.kind:
            raise UsageError(f"'tokenizer.kind' cannot be '{self.kind}'", nearest(self.kind, known))
        at_least("tokenizer.vocab_size", self.vocab_size, 0)
        at_least("tokenizer.min_count", self.min_count, 0)
        if self.file is not None:
            names: tuple[str, ...] = ("vocab_size", "min_count", "lowercase")
            needs = "kind instead of tokenizer.file"
        else:
            names, needs = UNREAD.get(self.kind, ()), "kind to char or word"
        refuse_unread(self, "tokenizer", names, needs)
