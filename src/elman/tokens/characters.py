"""Characters: every Unicode character is a token."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers

from elman.text.sources import corpus_blocks
from elman.tokens.kind import (
    BOUNDARY,
    UNKNOWN,
    Counts,
    Ids,
    Kind,
    lower,
    normaliser,
    split_pattern,
)
from elman.tokens.tokenizer_config import TokenizerConfig

PATTERN = r"[\s\S]"
NUM_CODE_POINTS = 0x110000


def build(characters: Sequence[str], *, lowercase: bool = False) -> tokenizers.Tokenizer:
    """Make a tokenizer with these characters, in the order of their ids, after the specials."""
    vocab = {token: i for i, token in enumerate([BOUNDARY, UNKNOWN, *characters])}
    backend = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token=UNKNOWN))
    backend.normalizer = normaliser(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(PATTERN), "isolated")
    backend.decoder = decoders.Fuse()
    return backend


def code_points(text: str) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")


class Characters(Kind):
    """Look ids up in a table of all code points: hundreds of megabytes per second."""

    name = "char"

    def __init__(self, backend: tokenizers.Tokenizer, spec: dict[str, Any]) -> None:
        super().__init__(backend, spec)
        self._id_of_code_point = np.full(NUM_CODE_POINTS, self.vocab[UNKNOWN], np.int32)
        for token, i in self.vocab.items():
            if len(token) == 1:
                self._id_of_code_point[ord(token)] = i

    @classmethod
    def recognises(cls, spec: dict[str, Any]) -> bool:
        return spec["model"].get("type") == "WordLevel" and split_pattern(spec) == PATTERN

    @classmethod
    def train(
        cls, files: list[Path], config: TokenizerConfig
    ) -> tuple[tokenizers.Tokenizer, Counts]:
        seen = np.zeros(NUM_CODE_POINTS, np.int64)
        for block in corpus_blocks(files):
            numbers = np.bincount(
                code_points(lower(block.text) if config.lowercase else block.text)
            )
            seen[: len(numbers)] += numbers
        frequent = np.argsort(-seen, kind="stable")[: np.count_nonzero(seen)]
        frequent = frequent[seen[frequent] >= max(1, config.min_count)]
        if config.vocab_size:
            frequent = frequent[: max(0, config.vocab_size - 2)]
        counts_V = np.concatenate([[0, seen.sum() - seen[frequent].sum()], seen[frequent]])
        return build([chr(i) for i in frequent], lowercase=config.lowercase), counts_V

    def encode(self, text: str) -> Ids:
        return self._id_of_code_point[code_points(self.lowered(text))]

    def pieces(self) -> list[bytes]:
        special = {BOUNDARY: "", UNKNOWN: "�"}
        pieces = [b""] * self.vocab_size
        for token, i in self.vocab.items():
            pieces[i] = special.get(token, token).encode()
        return pieces
