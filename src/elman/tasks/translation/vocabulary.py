"""The tokenizers of a translator: one for the source and one for the target, or one for both."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from elman.tokens.tokenizer import TOKENIZER_FILE, Tokenizer

SOURCE_FILE = "source_tokenizer.json"
"""The source's tokenizer in a run folder, unless it is the target's."""


@dataclass(frozen=True)
class TokenizerPair:
    source: Tokenizer
    target: Tokenizer

    @property
    def shared(self) -> bool:
        """Whether both sides have one vocabulary."""
        return self.source is self.target

    def encode_source(self, line: str) -> list[int]:
        """Encode a source line, with the boundary token at its end."""
        return [*self.source.encode(line).tolist(), self.source.boundary_id]

    def save(self, folder: Path) -> None:
        self.target.save(folder / TOKENIZER_FILE)
        if not self.shared:
            self.source.save(folder / SOURCE_FILE)

    @classmethod
    def load(cls, folder: Path) -> TokenizerPair:
        target = Tokenizer.load(folder / TOKENIZER_FILE)
        source = folder / SOURCE_FILE
        return cls(Tokenizer.load(source) if source.is_file() else target, target)
