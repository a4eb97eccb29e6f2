"""What the kinds of tokenizer have in common.

The truth about a tokenizer is its Hugging Face `tokenizer.json`: the `backend` that reads it can
encode any text. A kind adds what the file cannot say: a quicker way to the same ids, and how
tokens join into text again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers.normalizers import Lowercase, Normalizer
from tokenizers.normalizers import Sequence as NormalizerSequence

Ids = NDArray[np.int32]

BOUNDARY = "<eos>"
"""The token that begins every text, and ends every line where the kind marks lines."""
UNKNOWN = "<unk>"
"""The token that stands for whatever the vocabulary lacks."""


class Kind(ABC):
    """One way to cut text into tokens."""

    name: ClassVar[str]
    marks_lines: ClassVar[bool] = False

    def __init__(self, backend: tokenizers.Tokenizer, spec: dict[str, Any]) -> None:
        self.backend = backend
        self.vocab: dict[str, int] = backend.get_vocab()
        self.lowercase = "Lowercase" in str(spec["normalizer"])

    @classmethod
    @abstractmethod
    def recognises(cls, spec: dict[str, Any]) -> bool:
        """Whether a parsed tokenizer.json is of this kind."""

    @abstractmethod
    def encode(self, text: str) -> Ids:
        """The ids of `text`, equal to the backend's."""

    @abstractmethod
    def pieces(self) -> list[bytes]:
        """The bytes of text that each id stands for; the boundary's are empty, or a line end."""

    def glue(self, previous: int, following: int) -> bytes:
        """What stands between two neighbouring tokens in running text."""
        return b""

    def starts_word(self, piece: bytes) -> bool:
        """Whether a token with these bytes is, or begins with, white space."""
        return piece[:1].isspace()

    def lowered(self, text: str) -> str:
        """The text as the tokenizer's own normaliser leaves it, in lower case or not."""
        return lower(text) if self.lowercase else text


class PieceTable:
    """Ids of pieces of text, remembered: text repeats itself, and looking up is quick."""

    # Past this many pieces the table starts afresh: some 60 MB.
    LIMIT = 200_000

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self._ids: dict[str, tuple[int, ...]] = {}

    def encode(self, pieces: Sequence[str]) -> Ids:
        """The ids of the pieces, joined."""
        if missing := list(set(pieces).difference(self._ids)):
            if len(self._ids) + len(missing) > self.LIMIT:
                self._ids = {}
                missing = list(set(pieces))
            encodings = self._backend.encode_batch(missing, add_special_tokens=False)
            self._ids.update(zip(missing, (tuple(e.ids) for e in encodings), strict=True))
        ids: Iterable[int] = chain.from_iterable(map(self._ids.__getitem__, pieces))
        return np.fromiter(ids, np.int32)


def lower(text: str) -> str:
    """The text in lower case, character by character as the backend does it.

    Python by itself would lower a capital sigma according to its place in the word.
    """
    return text.replace("Σ", "σ").lower()


def normaliser(*steps: Normalizer, lowercase: bool) -> Normalizer | None:
    """The steps in a row, after lowering the case where that is wanted."""
    wanted = [Lowercase(), *steps] if lowercase else list(steps)
    if len(wanted) < 2:
        return wanted[0] if wanted else None
    return NormalizerSequence(wanted)


def split_pattern(spec: dict[str, Any]) -> str | None:
    """The regular expression by which a parsed tokenizer.json splits text, if it has just one."""
    pre_tokenizer = spec.get("pre_tokenizer") or {}
    pattern = pre_tokenizer.get("pattern") or {}
    return pattern.get("Regex") if pre_tokenizer.get("type") == "Split" else None
