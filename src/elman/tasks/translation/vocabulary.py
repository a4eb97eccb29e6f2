"""The tokenizers of text in pairs: one for the source and one for the target, or one for both."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from elman.tokens.tokenizer import Tokenizer

SOURCE_FILE = "source_tokenizer.json"
"""The source's tokenizer in a run folder, where it is not the target's `tokenizer.json`."""
TARGET_FILE = "tokenizer.json"


@dataclass(frozen=True)
class TokenizerPair:
    """Text to ids and back, on either side."""

    source: Tokenizer
    target: Tokenizer

    @property
    def shared(self) -> bool:
        """Whether one vocabulary serves both sides."""
        return self.source is self.target

    def encode_source(self, line: str) -> list[int]:
        """The ids of a source line, with the boundary that ends it."""
        return [*self.source.encode(line).tolist(), self.source.boundary_id]

    def decode_target(self, ids: tuple[int, ...]) -> str:
        """The text of target ids, up to the boundary that ends it."""
        text = [id for id in ids if id != self.target.boundary_id]
        return self.target.decode(text)

    def save(self, folder: Path) -> None:
        """Write one file or two into a run folder."""
        self.target.save(folder / TARGET_FILE)
        if not self.shared:
            self.source.save(folder / SOURCE_FILE)

    @classmethod
    def load(cls, folder: Path) -> TokenizerPair:
        """Read what `save` wrote."""
        target = Tokenizer.load(folder / TARGET_FILE)
        source = folder / SOURCE_FILE
        return cls(Tokenizer.load(source) if source.is_file() else target, target)
