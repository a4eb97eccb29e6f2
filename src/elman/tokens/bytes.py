"""Bytes: every byte of UTF-8 is a token, so no text is ever out of vocabulary."""

from __future__ import annotations

from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from elman.tokens.kind import BOUNDARY, Ids, Kind


def byte_spellings() -> list[str]:
    """The printable character that spells each of the 256 bytes in a file (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    code_points = {byte: byte for byte in printable}
    code_points |= {byte: 256 + i for i, byte in enumerate(others)}
    return [chr(code_points[byte]) for byte in range(256)]


def build() -> tokenizers.Tokenizer:
    """A tokenizer of 257 ids: the boundary, then the bytes in order."""
    vocab = {token: i for i, token in enumerate([BOUNDARY, *byte_spellings()])}
    backend = tokenizers.Tokenizer(models.BPE(vocab, []))
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = split
    backend.decoder = decoders.ByteLevel()
    return backend


class Bytes(Kind):
    """An id is one more than its byte."""

    name = "byte"

    @classmethod
    def recognises(cls, spec: dict[str, Any]) -> bool:
        """Byte-level pair encoding without a single merge."""
        model = spec["model"]
        return bool(model.get("type") == "BPE" and model["vocab"] == build().get_vocab())

    def encode(self, text: str) -> Ids:
        """One id per byte."""
        return np.frombuffer(text.encode(), np.uint8).astype(np.int32) + 1

    def pieces(self) -> list[bytes]:
        """The bytes themselves."""
        return [b"", *(bytes([byte]) for byte in range(256))]
