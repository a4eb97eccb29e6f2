"""Bytes: every byte of UTF-8 is a token, so no text is ever out of vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from elman.base.errors import UsageError
from elman.tokens.kind import BOUNDARY, Ids, Kind
from elman.tokens.tokenizer_config import TokenizerConfig


def byte_spellings() -> list[str]:
    """Return the printable character that spells each of the 256 bytes in a file (GPT-2's
    table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    code_points = {byte: byte for byte in printable}
    code_points |= {byte: 256 + i for i, byte in enumerate(others)}
    return [chr(code_points[byte]) for byte in range(256)]


def build() -> tokenizers.Tokenizer:
    """Make a tokenizer of 257 ids: the boundary, then the bytes in order."""
    vocab = {token: i for i, token in enumerate([BOUNDARY, *byte_spellings()])}
    backend = tokenizers.Tokenizer(models.BPE(vocab, []))
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = split
    backend.decoder = decoders.ByteLevel()
    return backend


class Bytes(Kind):
    """Encode each byte as its value plus one."""

    name = "byte"

    @classmethod
    def recognises(cls, spec: dict[str, Any]) -> bool:
        """Byte-level BPE without merges."""
        model = spec["model"]
        return bool(model.get("type") == "BPE" and model["vocab"] == build().get_vocab())

    @classmethod
    def train(cls, files: list[Path], config: TokenizerConfig) -> tuple[tokenizers.Tokenizer, None]:
        if config.lowercase:
            raise UsageError("a byte tokenizer cannot lowercase text", "use char or bpe")
        return build(), None

    def encode(self, text: str) -> Ids:
        return np.frombuffer(text.encode(), np.uint8).astype(np.int32) + 1

    def pieces(self) -> list[bytes]:
        return [b"", *(bytes([byte]) for byte in range(256))]
