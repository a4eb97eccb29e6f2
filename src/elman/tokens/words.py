"""Words of ordinary text: runs of letters and digits, and each mark of punctuation by itself.

Contractions stay whole ("don't" is one word). A boundary token is read at the end of each line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import tokenizers

from elman.tokens import pretokenized
from elman.tokens.kind import BOUNDARY, UNKNOWN, Ids, PieceTable, split_pattern

PATTERN = rf"{BOUNDARY}|{UNKNOWN}|\w+(?:['’]\w+)*|[^\w\s\x1c-\x1f]"

# The same for ASCII, where Python and the backend agree on what a letter is.
_ASCII = re.compile(PATTERN, re.ASCII)

# Marks that lean on the word before them or on the word after: no space is written there. Because
# every mark is a token by itself, text written so is cut into the same tokens again.
_CLOSING = frozenset(",.;:!?)]}»”…%、。，！？；：）】」』")
_OPENING = frozenset("([{«“¿¡（【「『")


def build(words: Sequence[str], *, lowercase: bool = False) -> tokenizers.Tokenizer:
    """A tokenizer with the given words, in the order of their ids, after the special tokens."""
    return pretokenized.build(words, PATTERN, lowercase=lowercase)


def split_ascii(stretch: str) -> list[str]:
    """The words and marks in a stretch of ASCII without white space."""
    return _ASCII.findall(stretch)


class Words(pretokenized.Pretokenized):
    """Ids by splitting at white space and looking up what each stretch between holds."""

    name = "word"

    def __init__(self, backend: tokenizers.Tokenizer, spec: dict[str, Any]) -> None:
        super().__init__(backend, spec)
        self._table = PieceTable(backend, self._encode_ascii)
        self._closing = {self.vocab[mark] for mark in _CLOSING if mark in self.vocab}
        self._opening = {self.vocab[mark] for mark in _OPENING if mark in self.vocab}

    @classmethod
    def recognises(cls, spec: dict[str, Any]) -> bool:
        """A vocabulary of whole tokens, over text split into words and marks."""
        return spec["model"].get("type") == "WordLevel" and split_pattern(spec) == PATTERN

    def encode(self, text: str) -> Ids:
        """One id per word or mark, and one per line end."""
        return self._table.encode(pretokenized.words_of(text))

    def _encode_ascii(self, stretch: str) -> list[int]:
        return [self.vocab.get(word, self._unknown) for word in split_ascii(self.lowered(stretch))]

    def glue(self, previous: int, following: int) -> bytes:
        """A space, but not around line ends, before closing marks or after opening ones."""
        if following in self._closing or previous in self._opening:
            return b""
        return super().glue(previous, following)
