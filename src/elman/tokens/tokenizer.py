"""The tokenizer: text to ids and back, saved as a Hugging Face `tokenizer.json`.

One class serves every kind of vocabulary. What differs between kinds is small and lives in a file
each (`characters.py`, `bytes.py`, `words.py`, `pretokenized.py`, `bpe.py`); which kind a file is
can be seen from its structure, so a file needs no companion. Special tokens are part of the
vocabulary but are never read out of text in the character, byte and BPE kinds: there `<eos>` is
just five characters, and decoding gives back the very text that was encoded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import models

from elman.base.errors import ElmanError, UsageError
from elman.base.files import explain, write_text
from elman.tokens.bpe import BytePairs
from elman.tokens.bytes import Bytes
from elman.tokens.characters import Characters
from elman.tokens.kind import BOUNDARY, UNKNOWN, Ids, Kind
from elman.tokens.pretokenized import Pretokenized
from elman.tokens.stream import StreamDecoder
from elman.tokens.words import Words

TOKENIZER_FILE = "tokenizer.json"
"""Where a run folder has it."""

KINDS: tuple[type[Kind], ...] = (Characters, Pretokenized, Words, Bytes, BytePairs)
"""The kinds, each tried in turn on a file's structure."""

# How other toolkits spell the token that begins or ends a text.
FOREIGN_BOUNDARIES = (BOUNDARY, "</s>", "<|endoftext|>", "<|end_of_text|>", "<s>", "[SEP]", "[EOS]")

CUTTING_SETTINGS = (
    *("type", "pattern", "content", "behavior", "invert"),
    *("add_prefix_space", "use_regex"),
)
"""What of a normaliser or pre-tokenizer decides where text is cut."""


class Tokenizer:
    """Text to ids and back.

    `kind` is "char", "byte", "word", "pretokenized" or "bpe". The token `boundary_id` begins every
    text: it is the context of the first token. Where `marks_lines` is true it also ends every
    line. `unknown_id` stands for what the vocabulary lacks, and is None where it lacks nothing.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self.backend = backend
        spec = _spec(backend)
        for kind in KINDS:
            if kind.recognises(spec):
                self._kind = kind(backend, spec)
                break
        else:
            raise UsageError(
                f"the tokenizer's model is {spec['model'].get('type')}, which Elman cannot use",
                "use a word-level or byte-level BPE tokenizer.json, or let Elman make one",
            )
        vocab = self._kind.vocab
        boundary = next((name for name in FOREIGN_BOUNDARIES if name in vocab), None)
        if boundary is None:
            raise UsageError(
                "the tokenizer has no token that begins or ends a text",
                f"add {BOUNDARY} to its vocabulary",
            )
        self.kind: str = self._kind.name
        self.marks_lines: bool = self._kind.marks_lines
        self.lowercase: bool = self._kind.lowercase
        self.vocab_size: int = max(vocab.values()) + 1
        self.boundary_id: int = vocab[boundary]
        self.unknown_id: int | None = vocab.get(UNKNOWN)

    def __repr__(self) -> str:
        return f"Tokenizer({self.kind}, {self.vocab_size:,} tokens)"

    def encode(self, text: str) -> Ids:
        """The ids of `text`, with a boundary per line end where `marks_lines`, none in front."""
        with _sound_text(text):
            return self._kind.encode(text)

    def encode_spans(self, text: str) -> tuple[Ids, list[tuple[int, int]]]:
        """The ids of `text` and the characters, from start to before end, that each covers.

        The boundary at the end of a line covers the line end. Tokens that share one character, as
        the bytes of a letter with an accent may, cover that character each.
        """
        with _sound_text(text):
            encoding = self.backend.encode(text, add_special_tokens=False)
        return np.array(encoding.ids, np.int32), encoding.offsets

    def words(self, line: str) -> list[str]:
        """The words of a line as a tokenizer of words cuts them, in its vocabulary or not."""
        line = line.rstrip("\n")
        if self.kind == "pretokenized":
            return self._kind.lowered(line).split()
        return [self._kind.lowered(line[start:end]) for start, end in self.encode_spans(line)[1]]

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        """The text of `ids`."""
        stream = self.stream()
        return "".join(map(stream.push, map(int, ids))) + stream.finish()

    def stream(self, after: int | None = None) -> StreamDecoder:
        """A decoder to push ids into one by one, for text that goes on from the token `after`."""
        return StreamDecoder(self._pieces, self._kind.glue, after)

    def token(self, id: int) -> str:
        """The spelling of one token, as `spellings` has it."""
        return self._spellings[id]

    def id(self, token: str) -> int | None:
        """The id of the token spelled so, or None."""
        return self._id_of_spelling.get(token)

    def spellings(self) -> list[str]:
        """The text of each id: " the" with its space, <eos> and <unk> so, stray bytes as <0xE2>."""
        return list(self._spellings)

    def starts_word(self) -> NDArray[np.bool_]:
        """(V,) True where a token begins a word: with white space, or as a whole word."""
        return np.array([self._kind.starts_word(piece) for piece in self._pieces])

    @cached_property
    def hash(self) -> str:
        """SHA-256 of what gives ids their meaning: equal where the same text has the same ids.

        Not of the file: what else stands there, and how merges are written, differs between
        versions of the library.
        """
        spec = _spec(self.backend)
        merges = [
            pair.split(" ") if isinstance(pair, str) else pair
            for pair in spec["model"].get("merges", ())
        ]
        meaning = {
            "kind": self.kind,
            "vocab": [(token, self._kind.vocab[token]) for token in sorted(self._kind.vocab)],
            "merges": merges,
            "cut": [_steps(spec["normalizer"]), _steps(spec["pre_tokenizer"])],
        }
        return hashlib.sha256(json.dumps(meaning).encode()).hexdigest()

    def to_json(self) -> str:
        """The tokenizer as one line of JSON."""
        serialised: str = self.backend.to_str()
        return serialised

    def save(self, path: Path) -> None:
        """Write the tokenizer as a `tokenizer.json`."""
        write_text(path, self.backend.to_str(pretty=True) + "\n")

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Read a `tokenizer.json`, Elman's or another toolkit's."""
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise explain(error, path) from error
        except UnicodeDecodeError as error:
            raise _damaged(path, str(error)) from error
        return cls.from_json(text, path)

    @classmethod
    def from_json(cls, text: str, path: Path | None = None) -> Tokenizer:
        """The opposite of `to_json`; `path` is named where the text is damaged."""
        try:
            backend = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises plain Exception, with serde's message
            raise _damaged(path, str(error)) from error
        return cls(backend)

    @cached_property
    def _pieces(self) -> list[bytes]:
        return self._kind.pieces()

    @cached_property
    def _spellings(self) -> list[str]:
        special = {self.boundary_id, self.unknown_id}
        return [
            str(self.backend.id_to_token(i)) if i in special else _spelling(piece)
            for i, piece in enumerate(self._pieces)
        ]

    @cached_property
    def _id_of_spelling(self) -> dict[str, int]:
        ids: dict[str, int] = {}
        for i, spelling in enumerate(self._spellings):
            ids.setdefault(spelling, i)
        return ids


def _spec(backend: tokenizers.Tokenizer) -> dict[str, Any]:
    """A tokenizer.json, parsed; of a vocabulary of words, which may be large, without the words."""
    if not isinstance(backend.model, models.WordLevel):
        spec: dict[str, Any] = json.loads(backend.to_str())
        return spec
    parts = {"normalizer": backend.normalizer, "pre_tokenizer": backend.pre_tokenizer}
    return {
        "model": {"type": "WordLevel"},
        **{name: part and json.loads(part.__getstate__()) for name, part in parts.items()},
    }


@contextmanager
def _sound_text(text: str) -> Iterator[None]:
    """Explain what goes wrong with half characters, which is how Python passes on wrong bytes."""
    try:
        yield
    except (UnicodeEncodeError, TypeError) as error:
        if isinstance(text, str) and any("\ud800" <= character <= "\udfff" for character in text):
            raise UsageError("the text is not UTF-8", "type or paste it again") from error
        raise


def _steps(part: dict[str, Any] | None) -> list[Any]:
    """The steps of a normaliser or pre-tokenizer, each by those settings that move the cuts."""
    if part is None:
        return []
    for inner in ("normalizers", "pretokenizers"):
        if inner in part:
            return [step for child in part[inner] for step in _steps(child)]
    return [[part.get(setting) for setting in CUTTING_SETTINGS]]


def _spelling(piece: bytes) -> str:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "".join(f"<0x{byte:02X}>" for byte in piece)


def _damaged(path: Path | None, detail: str) -> ElmanError:
    return ElmanError(
        f"{path or 'the tokenizer'} is not a tokenizer.json: {detail}", "restore it from a copy"
    )
