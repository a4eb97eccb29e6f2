"""The base class of the kinds of tokenizer, and what several of them use.

A tokenizer is defined by its Hugging Face `tokenizer.json`: the `backend` that reads it can encode
any text. A kind adds what the file cannot express: how to train it, a faster way to the same ids,
and how tokens are joined into text. A kind of your own is a subclass of `Kind`, named in
`tokenizer.kind` as package.module:Name.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers.normalizers import Lowercase, Normalizer
from tokenizers.normalizers import Sequence as NormalizerSequence

from elman.base.errors import UsageError
from elman.base.tables import look_up
from elman.text.sources import Block
from elman.tokens.tokenizer_config import KINDS, TokenizerConfig
from elman.tokens.word_table import WordTable

Ids = NDArray[np.int32]
Counts = NDArray[np.int64]

SAMPLE_BYTES = 16 << 20
"""Learn merges and count ids from at most this much text, spread over the corpus: about 10 s."""

MOST_GAPS = 1 << 20
"""Limit on the ids of a vocabulary that no token has, besides as many as it has tokens."""

BOUNDARY = "<eos>"
"""The token that begins every text, and ends every line if the kind marks lines."""
UNKNOWN = "<unk>"
"""The token for anything outside the vocabulary."""


class Kind(ABC):
    """A way to split text into tokens."""

    name: ClassVar[str]
    marks_lines: ClassVar[bool] = False
    boundary: str = BOUNDARY
    """The name of the boundary token; `Tokenizer` sets that of the vocabulary."""
    begins_with_space: bool = False
    """Whether the first token of a text and of a line has a space that is not in the text."""
    has_names: ClassVar[bool] = False
    """Whether the names of tokens have no white space and are those that other tools use."""
    has_table: ClassVar[bool] = False
    """Whether the vocabulary may be a `WordTable`."""
    unknown: str = UNKNOWN
    """The name of the token for anything outside the vocabulary, if there is one."""

    def __init__(self, backend: Any, spec: dict[str, Any]) -> None:
        """`backend` is a tokenizer of the library, or a `TableBackend`."""
        self.backend = backend
        self.vocab: Mapping[str, int] = backend.get_vocab()
        if isinstance(self.vocab, WordTable):
            self.vocab_size = len(self.vocab)
        else:
            self.vocab_size = max(self.vocab.values()) + 1
            self._check_ids()
        self.lowercase = "Lowercase" in str(spec["normalizer"])

    def _check_ids(self) -> None:
        """Refuse ids that two tokens share, or that would need tables of unreasonable size."""
        if self.vocab_size > MOST_GAPS + 2 * len(self.vocab):
            raise ValueError(f"its {len(self.vocab):,} tokens have ids up to {self.vocab_size:,}")
        ids = np.fromiter(self.vocab.values(), np.int64, len(self.vocab))
        if np.bincount(ids).max() > 1:
            raise ValueError("two of its tokens have the same id")

    @classmethod
    def recognises(cls, spec: dict[str, Any]) -> bool:
        """Whether a parsed tokenizer.json is of this kind; kinds given as package.module:Name need
        not say."""
        return False

    @classmethod
    @abstractmethod
    def train(
        cls, files: list[Path], config: TokenizerConfig
    ) -> tuple[tokenizers.Tokenizer, Counts | None]:
        """Make a tokenizer for the text, and count its ids (None: from a sample)."""

    @abstractmethod
    def encode(self, text: str) -> Ids:
        """Encode `text` to the same ids as the backend."""

    def word_ids(self, words: Sequence[str]) -> Ids:
        """Encode words that have no white space in them, and boundary tokens."""
        return self.encode(" ".join(words))

    @abstractmethod
    def pieces(self) -> Sequence[bytes]:
        """Return the bytes that each id stands for; the boundary is empty or a line end."""

    def line_ends(self, pieces: Sequence[bytes]) -> Counts:
        """Count the line ends in each of `pieces`."""
        return np.array([piece.count(b"\n") for piece in pieces], np.int64)

    def encode_spans(self, text: str) -> tuple[Ids, list[tuple[int, int]]]:
        """Encode `text` and return the character span (start, end) of each id."""
        encoding = self.backend.encode(text, add_special_tokens=False)
        return np.array(encoding.ids, np.int32), encoding.offsets

    def glue(self, previous: int, following: int) -> bytes:
        """Return what to write between two neighbouring tokens."""
        return b""

    def starts_word(self, piece: bytes) -> bool:
        """Whether a token with these bytes is or begins with white space."""
        return piece[:1].isspace()

    def lowered(self, text: str) -> str:
        """Apply the tokenizer's own lowercasing, if it has any."""
        return lower(text) if self.lowercase else text


class PieceTable:
    """A cache of the ids of pieces of text.

    Pieces are numbered as they are met. The ids of piece n are `_ids[_ends[n - 1] : _ends[n]]`, so
    the ids of many pieces can be gathered without a loop.
    """

    # The table is cleared beyond this many pieces: about 40 MB in each process.
    LIMIT = 200_000

    def __init__(
        self, backend: tokenizers.Tokenizer, encode_ascii: Callable[[str], list[int]]
    ) -> None:
        """`encode_ascii` encodes a piece of ASCII to the backend's ids, faster."""
        self._backend = backend
        self._encode_ascii = encode_ascii
        self._lock = threading.Lock()
        self._numbers = _Numbers()
        self._ids: Ids = np.zeros(0, np.int32)
        self._ends: NDArray[np.int64] = np.zeros(1, np.int64)

    def encode(self, pieces: Sequence[str]) -> Ids:
        """Return the concatenated ids of the pieces."""
        with self._lock:
            numbers = np.fromiter(map(self._numbers.__getitem__, pieces), np.int64, len(pieces))
            try:
                self._learn()
                lengths = self._ends[numbers + 1] - self._ends[numbers]
                starts = np.cumsum(lengths) - lengths
                shifts = np.repeat(self._ends[numbers] - starts, lengths)
                return self._ids[shifts + np.arange(len(shifts))]
            finally:
                # After an error, numbers without ids would shift all later ones.
                if len(self._numbers) > self.LIMIT or len(self._numbers) >= len(self._ends):
                    self._numbers, self._ids, self._ends = _Numbers(), self._ids[:0], self._ends[:1]

    def _learn(self) -> None:
        """Add the ids of the pieces that were numbered since the last call."""
        num_new = len(self._numbers) + 1 - len(self._ends)
        if not num_new:
            return
        # Iterate from the end, where the new ones are: the time does not grow with the table.
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
    """Number strings in the order in which they are first looked up."""

    def __missing__(self, piece: str) -> int:
        number = self[piece] = len(self)
        return number


def words_of(text: str) -> list[str]:
    """Split text at white space; line ends become boundary tokens."""
    return text.replace("\n", f" {BOUNDARY} ").split()


def counts_in(blocks: Iterable[Block], encode: Callable[[str], Ids], vocab_size: int) -> Counts:
    """Count each id in a sample of text."""
    counts_V = np.zeros(vocab_size, np.int64)
    for block in blocks:
        counts_V += np.bincount(encode(block.text), minlength=vocab_size)
    return counts_V


def lower(text: str) -> str:
    """Lowercase text character by character, as the backend does.

    Python alone would lowercase a capital sigma according to its position in the word.
    """
    return text.replace("Σ", "σ").lower()


def normaliser(*steps: Normalizer, lowercase: bool) -> Normalizer | None:
    """Chain the steps, after lowercasing if wanted."""
    wanted = [Lowercase(), *steps] if lowercase else list(steps)
    if len(wanted) < 2:
        return wanted[0] if wanted else None
    return NormalizerSequence(wanted)


def split_pattern(spec: dict[str, Any]) -> str | None:
    """Return the regular expression that splits text, if a parsed tokenizer.json has
    exactly one."""
    pre_tokenizer = spec.get("pre_tokenizer") or {}
    pattern = pre_tokenizer.get("pattern") or {}
    return pattern.get("Regex") if pre_tokenizer.get("type") == "Split" else None


def kind_named(name: str) -> type[Kind]:
    """The kind of this name in the table, or package.module:Name."""
    found = look_up(KINDS, name, "tokenizer")
    if not isinstance(found, type) or not issubclass(found, Kind):
        raise UsageError(f"{name} is not a tokenizer", "derive it from elman.tokens.kind.Kind")
    return found
