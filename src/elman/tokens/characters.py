"""Characters: every Unicode character is a token, whatever it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers

from elman.tokens.kind import BOUNDARY, UNKNOWN, Ids, Kind, normaliser, split_pattern

PATTERN = r"[\s\S]"
NUM_CODE_POINTS = 0x110000


def build(characters: Sequence[str], *, lowercase: bool = False) -> tokenizers.Tokenizer:
    """A tokenizer with the given characters, in the order of their ids, after the specials."""
    vocab = {token: i for i, token in enumerate([BOUNDARY, UNKNOWN, *characters])}
    backend = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token=UNKNOWN))
    backend.normalizer = normaliser(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(PATTERN), "isolated")
    backend.decoder = decoders.Fuse()
    return backend


def code_points(text: str) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """The number of each character."""
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")


class Characters(Kind):
    """Ids by one look-up in a table of all code points: hundreds of megabytes a second."""

    name = "char"

    def __init__(self, backend: tokenizers.Tokenizer, spec: dict[str, Any]) -> None:
        super().__init__(backend, spec)
        self._id_of_code_point = np.full(NUM_CODE_POINTS, self.vocab[UNKNOWN], np.int32)
        for token, i in self.vocab.items():
            if len(token) == 1:
                self._id_of_code_point[ord(token)] = i

    @classmethod
    def recognises(cls, spec: dict[str, Any]) -> bool:
        """A vocabulary of whole tokens, over text split into single characters."""
        return spec["model"].get("type") == "WordLevel" and split_pattern(spec) == PATTERN

    def encode(self, text: str) -> Ids:
        """One id per character."""
        return self._id_of_code_point[code_points(self.lowered(text))]

    def pieces(self) -> list[bytes]:
        """Each character in UTF-8; an unknown one as U+FFFD."""
        special = {BOUNDARY: "", UNKNOWN: "�"}
        by_id = sorted(self.vocab, key=self.vocab.__getitem__)
        return [special.get(token, token).encode() for token in by_id]
