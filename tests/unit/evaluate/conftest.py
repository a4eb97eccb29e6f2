"""A tokenizer of each kind over one small text, and a small network for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from elman.models.recurrent import RecurrentLM, RecurrentLMConfig
from elman.tokens import bpe, bytes, characters, pretokenized, words
from elman.tokens.tokenizer import Tokenizer

TEXT = """the cat sat on the mat and the cats sat too
a student opened the book  and the students opened their books
café naïve über and more
"""


def _tokenizers() -> dict[str, Tokenizer]:
    types = sorted(set(TEXT.split()))
    return {
        "char": Tokenizer(characters.build(sorted(set(TEXT)))),
        "byte": Tokenizer(bytes.build()),
        "word": Tokenizer(words.build(types)),
        "pretokenized": Tokenizer(pretokenized.build(types)),
        "bpe": Tokenizer(bpe.train(TEXT.splitlines(keepends=True) * 3, 300)),
    }


@pytest.fixture(scope="session")
def tokenizers() -> dict[str, Tokenizer]:
    return _tokenizers()


@pytest.fixture(scope="session")
def network() -> Callable[..., RecurrentLM]:
    """A random network over so many types, whose predictions depend strongly on what it read."""

    def build(vocab_size: int, **settings: Any) -> RecurrentLM:
        torch.manual_seed(0)
        config = RecurrentLMConfig(hidden_size=12, embedding_size=12, init_range=1.0, **settings)
        return config.build(vocab_size).eval()

    return build
