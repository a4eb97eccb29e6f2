"""Pre-tokenised text: one sentence per line, tokens between spaces, taken exactly as they are.

Published corpora (Penn Treebank, WikiText) come so, with rare words already replaced by `<unk>`. A
boundary token is read at the end of each line, as everyone does who reports a perplexity on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

import numpy as np
import tokenizers
from tokenizers import Regex, models, normalizers, pre_tokenizers

from elman.tokens.kind import BOUNDARY, UNKNOWN, Ids, Kind, normaliser, split_pattern

# White space as `str.split` sees it, which is Unicode's and four control characters.
PATTERN = r"[^\s\x1c-\x1f]+"


def build(
    words: Sequence[str], pattern: str = PATTERN, *, lowercase: bool = False
) -> tokenizers.Tokenizer:
    """A tokenizer with the given words, in the order of their ids, after the special tokens."""
    vocab = {token: i for i, token in enumerate([BOUNDARY, UNKNOWN, *words])}
    backend = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token=UNKNOWN))
    mark_lines = normalizers.Replace("\n", f" {BOUNDARY} ")
    backend.normalizer = normaliser(mark_lines, lowercase=lowercase)
    split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    backend.pre_tokenizer = split
    return backend


def words_of(text: str) -> list[str]:
    """The tokens of `text`, line ends among them."""
    return text.replace("\n", f" {BOUNDARY} ").split()


class Pretokenized(Kind):
    """Ids by `str.split` and a dictionary."""

    name = "pretokenized"
    marks_lines = True

    def __init__(self, backend: tokenizers.Tokenizer, spec: dict[str, Any]) -> None:
        super().__init__(backend, spec)
        self._boundary, self._unknown = self.vocab[BOUNDARY], self.vocab[UNKNOWN]

    @classmethod
    def recognises(cls, spec: dict[str, Any]) -> bool:
        """A vocabulary of whole tokens, over text split at white space."""
        return spec["model"].get("type") == "WordLevel" and split_pattern(spec) == PATTERN

    def encode(self, text: str) -> Ids:
        """One id per word, and one per line end."""
        words = words_of(self.lowered(text))
        ids = map(self.vocab.get, words, repeat(self._unknown))
        return np.fromiter(ids, np.int32, len(words))

    def pieces(self) -> list[bytes]:
        """Each word in UTF-8; the boundary as a line end."""
        pieces = [b""] * (max(self.vocab.values()) + 1)
        for token, i in self.vocab.items():
            pieces[i] = b"\n" if token == BOUNDARY else token.encode()
        return pieces

    def glue(self, previous: int, following: int) -> bytes:
        """A space, but not around line ends."""
        return b"" if self._boundary in (previous, following) else b" "

    def starts_word(self, piece: bytes) -> bool:
        """Every token is a word."""
        return True
