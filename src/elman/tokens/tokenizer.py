"""The tokenizer: text to ids and back, saved as a Hugging Face `tokenizer.json`.

One class serves every kind of vocabulary. The differences between kinds are small and have a file
each (`characters.py`, `bytes.py`, `words.py`, `pretokenized.py`, `bpe.py`, `sentence_pieces.py`).
The kind is recognised from the structure of the file, so no second file is needed. In the
character, byte and BPE kinds special tokens are never matched in text: there `<eos>` is just five
characters, and decoding returns exactly the text that was encoded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import models

from elman.base.documents import intact
from elman.base.errors import UsageError, check_text
from elman.base.files import regular, write_bytes
from elman.tokens.form import Form, form_of
from elman.tokens.kind import BOUNDARY, Ids, Kind, kind_named
from elman.tokens.sentence_pieces import SUFFIX, read_model
from elman.tokens.stream import StreamDecoder
from elman.tokens.tokenizer_config import KINDS
from elman.tokens.word_table import (
    LARGE,
    TableBackend,
    WordTable,
    read_table,
    table_file,
    write_table,
)

TOKENIZER_FILE = "tokenizer.json"
"""File name in a run folder."""

TOKENIZER_FILES = (TOKENIZER_FILE, table_file(Path(TOKENIZER_FILE)).name)
"""All that `Tokenizer.save` may write."""

OUTSIDE_KIND = "elman_kind"
"""The key in a tokenizer.json that names a kind given as package.module:Name."""

# Names of the boundary token in other toolkits.
FOREIGN_BOUNDARIES = (BOUNDARY, "</s>", "<|endoftext|>", "<|end_of_text|>", "<s>", "[SEP]", "[EOS]")

ADDED_TOKEN = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
"""Settings of a token that is matched in text before it is split."""

CUTTING_SETTINGS = (
    *("type", "pattern", "content", "behavior", "invert"),
    *("add_prefix_space", "use_regex"),
)
"""Settings of a normaliser or pre-tokenizer that decide where text is split."""


class Tokenizer:
    """Text to ids and back.

    `kind` is a name of the table `KINDS`, or package.module:Name. The token `boundary_id` begins
    every text, as the context of the first token; if `marks_lines` is true it also ends every line.
    `unknown_id` is the id for anything outside the vocabulary, None if there is no such thing.
    """

    def __init__(self, backend: tokenizers.Tokenizer | TableBackend, kind: str = "") -> None:
        """`kind` is recognised from the backend if it is empty or one of the table's."""
        self.backend: Any = backend
        if not isinstance(backend, TableBackend):
            # Files of other toolkits may say to cut every text, or to pad it.
            backend.no_truncation()
            backend.no_padding()
        spec = spec_of(backend)
        classes = [kind_named(name) for name in ([kind] if ":" in kind else KINDS)]
        found = next((c for c in classes if ":" in kind or c.recognises(spec)), None)
        if found is None:
            raise UsageError(
                f"the tokenizer's model is {spec['model'].get('type')}, which Elman cannot use",
                "use a word-level, Unigram or byte-level BPE file, or let Elman train one",
            )
        self._kind: Kind = found(backend, spec)
        vocab = self._kind.vocab
        boundary = next((name for name in FOREIGN_BOUNDARIES if name in vocab), None)
        if boundary is None:
            raise UsageError(
                "the tokenizer has no token that begins or ends a text",
                f"add {BOUNDARY} to its vocabulary",
            )
        self.kind: str = kind if ":" in kind else self._kind.name
        self.marks_lines: bool = self._kind.marks_lines
        self.lowercase: bool = self._kind.lowercase
        self.vocab_size: int = self._kind.vocab_size
        self._kind.boundary = boundary
        self.boundary_id: int = vocab[boundary]
        self.unknown_id: int | None = vocab.get(self._kind.unknown)

    def __repr__(self) -> str:
        return f"Tokenizer({self.kind}, {self.vocab_size:,} tokens)"

    @property
    def reads_as(self) -> str:
        """How it changes text to the form of the training text, in a phrase; empty: not at all."""
        return ""

    def encode(self, text: str) -> Ids:
        """Encode `text`; no boundary in front, one per line end if `marks_lines`."""
        with _sound_text(text):
            return self._kind.encode(text)

    def word_ids(self, words: Sequence[str]) -> Ids:
        """Encode words that have no white space in them, and boundary tokens."""
        return self._kind.word_ids(words)

    def encode_spans(self, text: str) -> tuple[Ids, list[tuple[int, int]]]:
        """Encode `text` and return the character span (start, end) of each id.

        The boundary at the end of a line covers the line end. Tokens within one character, such as
        the bytes of an accented letter, each cover that character.
        """
        with _sound_text(text):
            return self._kind.encode_spans(text)

    def words(self, line: str) -> list[str]:
        """Split a line into words, in the vocabulary or not; for tokenizers of words."""
        check_text(line)
        line = line.rstrip("\n")
        if self.kind == "pretokenized":
            return self._kind.lowered(line).split()
        return [self._kind.lowered(line[start:end]) for start, end in self.encode_spans(line)[1]]

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        stream = self.stream()
        return "".join(map(stream.push, map(int, ids))) + stream.finish()

    def stream(self, after: int | None = None) -> StreamDecoder:
        """Return a decoder to push ids into, for text that follows the token `after`."""
        begins = {None, self.boundary_id} if self._kind.begins_with_space else set()
        return StreamDecoder(self._pieces, self._kind.glue, after, begins)

    def token(self, id: int) -> str:
        if id == self.boundary_id:
            return self._kind.boundary
        return self._kind.unknown if id == self.unknown_id else _spelling(self._pieces[id])

    def id(self, token: str) -> int | None:
        return self._id_of_spelling.get(token)

    def spellings(self) -> list[str]:
        """Return the text of each id: " the" with its space, <eos>, <unk>, stray bytes as
        <0xE2>."""
        return list(self._spellings)

    def names(self) -> list[str]:
        """Return the name of each id in a text of tokens separated by spaces, as other tools write
        it: its spelling, "▁the" in SentencePiece."""
        if not self._kind.has_names:
            return self.spellings()
        named = {i: token for token, i in self._kind.vocab.items()}
        return [named.get(i, "") for i in range(self.vocab_size)]

    def starts_word(self) -> NDArray[np.bool_]:
        """(V,) True for tokens that begin a word: with white space, or as a whole word."""
        return np.array([self._kind.starts_word(piece) for piece in self._pieces])

    def line_ends(self) -> NDArray[np.int64]:
        """(V,) the number of line ends in each token."""
        return self._kind.line_ends(self._pieces)

    @cached_property
    def training_form(self) -> Form:
        """What the training text looked like."""
        if isinstance(self.backend, TableBackend):
            return Form(**self.backend.table.header["form"])
        # The names of words are their spellings, and take no memory: they are there.
        entries = self._kind.vocab if self._kind.has_table else self._spellings
        special = {self._kind.boundary, self._kind.unknown}
        return form_of(self.kind, entries, special, lowercases=self.lowercase)

    @cached_property
    def hash(self) -> str:
        """SHA-256 of all that decides which ids a text has and which text ids have.

        The file itself is not hashed: its other fields, how merges are written, and which settings
        without effect are spelled out, differ between versions of the library.
        """
        if isinstance(self.backend, TableBackend):
            return str(self.backend.table.header["hash"])
        spec, backend = spec_of(self.backend), self.backend
        model = {k: v for k, v in spec["model"].items() if k not in ("vocab", "merges")}
        added = [
            [id, *(getattr(token, flag) for flag in ADDED_TOKEN)]
            for id, token in sorted(backend.get_added_tokens_decoder().items())
        ]
        return hash_of(self.old_hash, {**spec, "model": model}, added)

    @cached_property
    def old_hash(self) -> str:
        """The hash in models of earlier versions: of the vocabulary, and of how text is split."""
        if isinstance(self.backend, TableBackend):
            return str(self.backend.table.header["old_hash"])
        spec = spec_of(self.backend)
        merges = [
            pair.split(" ") if isinstance(pair, str) else pair
            for pair in spec["model"].get("merges", ())
        ]
        entries = [(token, self._kind.vocab[token]) for token in sorted(self._kind.vocab)]
        return old_hash_of(self.kind, spec, json.dumps(entries).encode(), merges)

    def to_json(self, pretty: bool = False) -> str:
        serialised: str = self.backend.to_str(pretty=pretty)
        if ":" in self.kind:
            content = {**json.loads(serialised), OUTSIDE_KIND: self.kind}
            serialised = json.dumps(content, ensure_ascii=False, indent=2 if pretty else None)
        return serialised

    def save(self, path: Path) -> None:
        """Write a tokenizer.json; one of very many words also as a table, to open it at once."""
        backend, is_large = self.backend, self.vocab_size >= LARGE
        if isinstance(backend, TableBackend):
            content = backend.content()
        else:
            content = (self.to_json(pretty=not is_large) + "\n").encode()
        write_bytes(path, content)
        if is_large and isinstance(backend, TableBackend):
            write_table(path, content, backend.table, backend.table.header)
        elif is_large and self._kind.has_table and not backend.get_added_tokens_decoder():
            header = {name: getattr(self, name) for name in ("hash", "old_hash")}
            header |= {"form": asdict(self.training_form), "spec": spec_of(backend)}
            write_table(path, content, self._kind.vocab, header)

    def extended(self, tokens: Sequence[str]) -> Tokenizer:
        """Return this tokenizer with more words or characters, whose ids follow the others."""
        content = json.loads(self.to_json())
        vocab = content["model"]["vocab"]
        vocab |= {token: self.vocab_size + i for i, token in enumerate(tokens)}
        return type(self).from_json(json.dumps(content))

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Read a `tokenizer.json` of Elman or another toolkit, or a model of SentencePiece."""
        if path.suffix.lower() == SUFFIX:
            return cls(read_model(path))
        with _readable(path):
            content = regular(path).read_bytes()
            if (table := read_table(path, content)) is not None:
                return cls(TableBackend(table, lambda: content))
            return cls.from_json(content.decode(), path)

    @classmethod
    def from_json(cls, text: str, path: Path | None = None) -> Tokenizer:
        """Undo `to_json`; `path` is for the error message."""
        kind = ""
        with _readable(path):
            if f'"{OUTSIDE_KIND}"' in text:
                content = json.loads(text)
                kind = str(content.pop(OUTSIDE_KIND, ""))
                text = json.dumps(content)
            return cls(tokenizers.Tokenizer.from_str(text), kind)

    @cached_property
    def _pieces(self) -> Sequence[bytes]:
        with _readable():
            return self._kind.pieces()

    @cached_property
    def _spellings(self) -> list[str]:
        if isinstance(self._kind.vocab, WordTable):
            return list(self._kind.vocab)
        return list(map(self.token, range(self.vocab_size)))

    @cached_property
    def _id_of_spelling(self) -> dict[str, int]:
        ids: dict[str, int] = {}
        for i, spelling in enumerate(self._spellings):
            ids.setdefault(spelling, i)
        return ids


def spec_of(backend: tokenizers.Tokenizer | TableBackend) -> dict[str, Any]:
    """Parse a tokenizer.json, without the vocabulary of a word-level model, which may be large."""
    if isinstance(backend, TableBackend):
        return backend.spec
    if not isinstance(backend.model, models.WordLevel):
        spec: dict[str, Any] = json.loads(backend.to_str())
        return spec
    parts = {"normalizer": backend.normalizer, "pre_tokenizer": backend.pre_tokenizer}
    return {
        "model": {"type": "WordLevel", "unk_token": backend.model.unk_token},
        **{name: part and json.loads(part.__getstate__()) for name, part in parts.items()},
    }


@contextmanager
def _sound_text(text: str) -> Iterator[None]:
    """Explain errors caused by lone surrogates, which is how Python passes on invalid bytes, and
    those of a backend that reads a file but cannot encode with it."""
    check_text(text)
    try:
        yield
    except (UnicodeEncodeError, TypeError) as error:
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise UsageError("the text is not UTF-8", "type or paste it again") from error
        raise
    except BaseException as error:
        if type(error) is Exception or type(error).__name__ == "PanicException":
            with _readable():
                raise
        raise


def old_hash_of(kind: str, spec: dict[str, Any], entries: bytes, merges: Any = ()) -> str:
    """`Tokenizer.old_hash`; `entries` is the sorted vocabulary, a list of pairs in JSON."""
    cut = [_steps(spec["normalizer"]), _steps(spec["pre_tokenizer"])]
    begin = json.dumps({"kind": kind})[:-1]
    end = json.dumps({"merges": list(merges), "cut": cut})[1:]
    digest = hashlib.sha256(f'{begin}, "vocab": '.encode())
    digest.update(entries)
    digest.update(f", {end}".encode())
    return digest.hexdigest()


def hash_of(old_hash: str, spec: dict[str, Any], added: Sequence[Any] = ()) -> str:
    """`Tokenizer.hash`; `spec` is without the vocabulary and the merges."""
    parts = [spec["model"], spec["normalizer"], spec["pre_tokenizer"], list(added)]
    return _digest([old_hash, *map(_effective, parts)])


def _steps(part: dict[str, Any] | None) -> list[Any]:
    """Reduce a normaliser or pre-tokenizer to the settings that decide where text is split."""
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


def _readable(path: Path | None = None) -> AbstractContextManager[None]:
    """Turn the errors of the backend, even a panic, into one about the file."""
    fault = "is not a tokenizer.json that works"
    return intact(path or "the tokenizer", fault, "restore it from a copy")


def _effective(part: Any) -> Any:
    """Leave out the settings that are null, false or empty: a version may not write them."""
    if isinstance(part, dict):
        kept = {key: _effective(value) for key, value in sorted(part.items())}
        return {key: value for key, value in kept.items() if value}
    return [_effective(value) for value in part] if isinstance(part, list) else part


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
