"""Words of ordinary text: runs of letters and digits, and each punctuation mark by itself.

Contractions stay whole ("don't" is one word). Each line ends with a boundary token.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import tokenizers

from elman.tokens import pretokenized
from elman.tokens.kind import BOUNDARY, UNKNOWN, Ids, PieceTable, words_of

PATTERN = rf"{BOUNDARY}|{UNKNOWN}|\w+(?:['’]\w+)*|[^\w\s\x1c-\x1f]"

# For ASCII, where Python and the backend agree on what a letter is.
_ASCII = re.compile(PATTERN, re.ASCII)

# No space is written before closing marks or after opening ones. Every mark is a token by itself,
# so text written this way is split into the same tokens again.
CLOSING = frozenset(",.;:!?)]}»”…%、。，！？；：）】」』")
OPENING = frozenset("([{«“¿¡（【「『")


def build(words: Sequence[str], *, lowercase: bool = False) -> tokenizers.Tokenizer:
    """Make a tokenizer with these words, in the order of their ids, after the special tokens."""
    return pretokenized.build(words, PATTERN, lowercase=lowercase)


def splitter() -> Callable[[str], list[str]]:
    """Return a function that splits text without white space into words and marks."""
    backend = build([]).pre_tokenizer

    @lru_cache(50_000)
    def split_foreign(stretch: str) -> list[str]:
        return [word for word, _ in backend.pre_tokenize_str(stretch)]

    return lambda stretch: _ASCII.findall(stretch) if stretch.isascii() else split_foreign(stretch)


class Words(pretokenized.Pretokenized):
    """Split at white space and look up the ids of each stretch."""

    name = "word"
    pattern: ClassVar[str] = PATTERN
    splitter: ClassVar[str] = f"{__name__}:{splitter.__name__}"

    def __init__(self, backend: Any, spec: dict[str, Any]) -> None:
        super().__init__(backend, spec)
        self._table = PieceTable(backend, self._encode_ascii)
        self._closing = {self.vocab[mark] for mark in CLOSING if mark in self.vocab}
        self._opening = {self.vocab[mark] for mark in OPENING if mark in self.vocab}

    def encode(self, text: str) -> Ids:
        return self._table.encode(words_of(text))

    def _encode_ascii(self, stretch: str) -> list[int]:
        words = _ASCII.findall(self.lowered(stretch))
        return list(self._look_up(words))

    def glue(self, previous: int, following: int) -> bytes:
        if following in self._closing or previous in self._opening:
            return b""
        return super().glue(previous, following)
