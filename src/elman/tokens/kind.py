"""What the kinds of tokenizer have in common.

The truth about a tokenizer is its Hugging Face `tokenizer.json`: the `backend` that reads it can
encode any text. A kind adds what the file cannot say: a quicker way to the same ids, and how
tokens join into text again.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import chain, islice
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
    """Ids of pieces of text, remembered: text repeats itself, and looking up is quick.

    Pieces are numbered as they are met. The ids of piece n are `_ids[_ends[n - 1] : _ends[n]]`, so
    that the ids of many pieces can be gathered without a loop.
    """

    # Past this many pieces the table starts afresh: some 40 MB, in each of the processes.
    LIMIT = 200_000

    def __init__(
        self, backend: tokenizers.Tokenizer, encode_ascii: Callable[[str], list[int]]
    ) -> None:
        """`encode_ascii` encodes a piece of ASCII as the backend does, only quicker."""
        self._backend = backend
        self._encode_ascii = encode_ascii
        self._lock = threading.Lock()
        self._numbers = _Numbers()
        self._ids: Ids = np.zeros(0, np.int32)
        self._ends: NDArray[np.int64] = np.zeros(1, np.int64)

    def encode(self, pieces: Sequence[str]) -> Ids:
        """The ids of the pieces, joined."""
        with self._lock:
            numbers = np.fromiter(map(self._numbers.__getitem__, pieces), np.int64, len(pieces))
            try:
                self._learn()
                lengths = self._ends[numbers + 1] - self._ends[numbers]
                starts = np.cumsum(lengths) - lengths
                shifts = np.repeat(self._ends[numbers] - starts, lengths)
                return self._ids[shifts + np.arange(len(shifts))]
            finally:
                # Numbers without ids, after an error, would shift all that come later.
                if len(self._numbers) > self.LIMIT or len(self._numbers) >= len(self._ends):
                    self._numbers, self._ids, self._ends = _Numbers(), self._ids[:0], self._ends[:1]

    def _learn(self) -> None:
        """Add the ids of the pieces that have been numbered since the last time."""
        num_new = len(self._numbers) + 1 - len(self._ends)
        if not num_new:
            return
        # From the end, where the new ones are: the way from the front grows with the table.
        pieces = list(islice(reversed(self._numbers), num_new))[::-1]
        others = [piece for piece in pieces if not piece.isascii()]
        encodings = iter(self._backend.encode_batch(others, add_special_tokens=False))
        ids = [
            self._encode_ascii(piece) if piece.isascii() else next(encodings).ids
            for piece in pieces
        ]
        ends = self._ends[-1] + np.cumsum([len(piece_ids) for piece_ids in ids], dtype=np.int64)
        self._ends = np.concatenate([self._ends, ends])
        self._ids = np.concatenate([self._ids, np.fromiter(chain.from_iterable(ids), np.int32)])


class _Numbers(dict[str, int]):
    """Numbers for strings: whatever is looked up for the first time gets the next one."""

    def __missing__(self, piece: str) -> int:
        number = self[piece] = len(self)
        return number


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
