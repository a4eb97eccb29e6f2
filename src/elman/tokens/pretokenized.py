"""Pre-tokenized text: one sentence per line, tokens separated by spaces, used as they are.

Published corpora (Penn Treebank, WikiText) come in this form, with rare words already replaced by
`<unk>`. Each line ends with a boundary token, as is usual when perplexities on them are reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import tokenizers
from tokenizers import Regex, models, normalizers, pre_tokenizers

from elman.tokens.counting import BoundedCounts, count_words, most_frequent
from elman.tokens.kind import (
    BOUNDARY,
    UNKNOWN,
    Counts,
    Ids,
    Kind,
    normaliser,
    split_pattern,
    words_of,
)
from elman.tokens.tokenizer_config import TokenizerConfig
from elman.tokens.word_table import MANY, Pieces, WordTable

# White space as `str.split` defines it: Unicode's and four control characters.
PATTERN = r"[^\s\x1c-\x1f]+"
MAX_WORDS = 50_000
"""Default limit of a word vocabulary, except for text with a closed vocabulary."""


def build(
    words: Sequence[str], pattern: str = PATTERN, *, lowercase: bool = False
) -> tokenizers.Tokenizer:
    """Make a tokenizer with these words, in the order of their ids, after the special tokens."""
    vocab = {token: i for i, token in enumerate([BOUNDARY, UNKNOWN, *words])}
    backend = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token=UNKNOWN))
    mark_lines = normalizers.Replace("\n", f" {BOUNDARY} ")
    backend.normalizer = normaliser(mark_lines, lowercase=lowercase)
    split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    backend.pre_tokenizer = split
    return backend


class Pretokenized(Kind):
    """Encode with `str.split` and a dictionary."""

    name = "pretokenized"
    marks_lines = True
    has_table = True
    pattern: ClassVar[str] = PATTERN
    splitter: ClassVar[str] = ""
    """See `count_words`."""

    def __init__(self, backend: Any, spec: dict[str, Any]) -> None:
        super().__init__(backend, spec)
        self._boundary, self._unknown = self.vocab[BOUNDARY], self.vocab[UNKNOWN]

    @classmethod
    def recognises(cls, spec: dict[str, Any]) -> bool:
        return spec["model"].get("type") == "WordLevel" and split_pattern(spec) == cls.pattern

    @classmethod
    def train(
        cls, files: list[Path], config: TokenizerConfig
    ) -> tuple[tokenizers.Tokenizer, Counts]:
        counts = count_words(files, cls.splitter, lowercase=config.lowercase)
        closed = not cls.splitter and UNKNOWN in counts
        min_count = config.min_count or (1 if closed else 2)
        limit = config.vocab_size or (BoundedCounts.LIMIT if closed else MAX_WORDS)
        frequent = [w for w in most_frequent(counts, min_count) if w not in (BOUNDARY, UNKNOWN)]
        chosen = frequent[: max(0, limit - 2)]
        known = [counts[word] for word in [BOUNDARY, *chosen]]
        counts_V = np.array([known[0], counts.num_tokens - sum(known), *known[1:]], np.int64)
        return build(chosen, cls.pattern, lowercase=config.lowercase), counts_V

    def encode(self, text: str) -> Ids:
        return self._ids(words_of(self.lowered(text)))

    def word_ids(self, words: Sequence[str]) -> Ids:
        return self._ids([self.lowered(word) for word in words] if self.lowercase else words)

    def _ids(self, words: Sequence[str]) -> Ids:
        return np.fromiter(self._look_up(words), np.int32, len(words))

    def _look_up(self, words: Sequence[str]) -> Iterator[int]:
        vocab = self.vocab
        if isinstance(vocab, WordTable) and len(words) + vocab.num_asked > MANY:
            self.vocab = vocab = vocab.as_dict()
        return map(vocab.get, words, repeat(self._unknown))

    def line_ends(self, pieces: Sequence[bytes]) -> Counts:
        if not isinstance(pieces, Pieces):
            return super().line_ends(pieces)
        counts_V = np.zeros(len(pieces), np.int64)
        counts_V[self._boundary] = 1
        return counts_V

    def pieces(self) -> Sequence[bytes]:
        if isinstance(self.vocab, WordTable):
            return Pieces(self.vocab, self._boundary, b"\n")
        pieces = [b""] * self.vocab_size
        for token, i in self.vocab.items():
            pieces[i] = b"\n" if token == BOUNDARY else token.encode()
        return pieces

    def glue(self, previous: int, following: int) -> bytes:
        return b"" if self._boundary in (previous, following) else b" "

    def starts_word(self, piece: bytes) -> bool:
        return True
