"""SentencePiece: sub-words of lines in which a space is written as "▁".

`read_model` converts a model of SentencePiece (`.model`, kinds unigram and bpe) to a tokenizer.json
with the same ids. A line is encoded as SentencePiece encodes it; the boundary token ends each line,
as in a text of which `spm_encode` makes one line of pieces per line.

How the conversion stays exact:

- Merges. Of a piece of the kind bpe there is one pair from which SentencePiece makes it: the two
  parts into which the merges before it join its characters (`pair_of`).
- Names. A trie of Hugging Face's Unigram also holds the names of control tokens and bytes, which
  are no text for SentencePiece: they get a score worse than any spelling, and are cut in two where
  that does not help (`sentence_piece_limits.py`).
- Scores. SentencePiece adds them in single precision, Hugging Face in double: if two ways to split
  a text are equally likely, as for a long run of dashes, the choice may differ. This cannot be
  repaired in a tokenizer.json; `tied_note` says so.
- Characters. SentencePiece rewrites the longest match of its table, Hugging Face's `Precompiled`
  whole graphemes (`sentence_piece_rules.py`).
- Words. If no piece has a space inside, text can be cut before every space.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from elman.base.documents import intact
from elman.base.errors import UsageError
from elman.base.files import regular
from elman.text.sources import sample
from elman.tokens.choose import fitting_vocab_size
from elman.tokens.kind import (
    BOUNDARY,
    SAMPLE_BYTES,
    UNKNOWN,
    Counts,
    Ids,
    Kind,
    PieceTable,
    counts_in,
    normaliser,
)
from elman.tokens.sentence_piece_limits import hidden_names, tied_run
from elman.tokens.sentence_piece_rules import rewriting
from elman.tokens.tokenizer_config import TokenizerConfig

SUFFIX = ".model"
SPACE = "\u2581"
CONTROL = ("<s>", "</s>", "<pad>", "<bos>", BOUNDARY)
"""Names of tokens that stand for no text."""
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE_PIECE = 1, 2, 3, 4, 5, 6
_UNIGRAM, _BPE = 1, 2


class SentencePieces(Kind):
    """Encode line by line; a line word by word, where words are independent."""

    name = "sentencepiece"
    marks_lines = True
    has_names = True

    def __init__(self, backend: tokenizers.Tokenizer, spec: dict[str, Any]) -> None:
        super().__init__(backend, spec)
        model = spec["model"]
        unknown = model.get("unk_token")
        if model.get("unk_id") is not None:
            unknown = model["vocab"][model["unk_id"]][0]
        self.unknown = unknown or UNKNOWN
        self.begins_with_space = '"Prepend"' in json.dumps(spec["normalizer"]) or (
            '"Metaspace"' in json.dumps(spec["pre_tokenizer"])
        )
        self._has_bytes = bool(model.get("byte_fallback"))
        added = backend.get_added_tokens_decoder().values()
        self._special = {*CONTROL, *(token.content for token in added if token.special)}
        steps = json.dumps([spec["normalizer"], spec["pre_tokenizer"]], ensure_ascii=False)
        # Spaces are trimmed, every word begins with one, and text is cut there.
        cut = f'{{"String": "{SPACE}"}}, "behavior": "MergedWithNext"'
        are_independent = " {2,}" in steps and '"Prepend"' in steps and cut in steps
        one_by_one = are_independent and SPACE in self.vocab and not added
        self._table = PieceTable(backend, self._encode) if one_by_one else None

    @classmethod
    def recognises(cls, spec: dict[str, Any]) -> bool:
        """A Unigram model, or BPE of characters in which spaces are written as "▁"."""
        steps = json.dumps([spec["normalizer"], spec["pre_tokenizer"]], ensure_ascii=False)
        kind = spec["model"].get("type")
        return kind == "Unigram" or (kind == "BPE" and SPACE in steps and "ByteLevel" not in steps)

    @classmethod
    def train(
        cls, files: list[Path], config: TokenizerConfig
    ) -> tuple[tokenizers.Tokenizer, Counts]:
        """Train a Unigram model with bytes for what its characters lack."""
        blocks, num_bytes = sample(files, SAMPLE_BYTES)
        size = config.vocab_size or fitting_vocab_size(num_bytes)
        special = [UNKNOWN, BOUNDARY, *(f"<0x{byte:02X}>" for byte in range(256))]
        if size < len(special) + 64:
            raise UsageError(
                f"a sentencepiece vocabulary of {size} is too small for the 256 bytes",
                "set tokenizer.vocab_size to 512 or more",
            )
        trained = tokenizers.Tokenizer(models.Unigram())
        trained.normalizer = _normaliser([], lowercase=config.lowercase)
        trained.pre_tokenizer = pre_tokenizers.Split(SPACE, "merged_with_next")
        trainer = trainers.UnigramTrainer(
            vocab_size=size - len(special), unk_token=None, show_progress=False
        )
        lines = (line for block in blocks for line in block.text.splitlines())
        trained.train_from_iterator(lines, trainer)
        found = json.loads(trained.to_str())["model"]["vocab"]
        known = {piece for piece, _ in found}
        found += [] if SPACE in known else [[SPACE, min(score for _, score in found)]]
        pieces = [
            _Piece(UNKNOWN, 0.0, _UNKNOWN),
            _Piece(BOUNDARY, 0.0, _CONTROL),
            *(_Piece(name, 0.0, _BYTE_PIECE) for name in special[2:]),
            *(_Piece(piece, score) for piece, score in found),
        ]
        backend = _backend(_Model(pieces=pieces), lowercase=config.lowercase)
        kind = cls(backend, json.loads(backend.to_str()))
        return backend, counts_in(blocks, kind.encode, kind.vocab_size)

    def encode(self, text: str) -> Ids:
        lines = text.split("\n")
        if self._table is None or SPACE in text:
            encoded = self.backend.encode_batch(lines, add_special_tokens=False)
            parts = [np.array(one.ids, np.int32) for one in encoded]
        else:
            parts = [self._table.encode([w for w in line.split(" ") if w]) for line in lines]
        end = np.array([self.vocab[self.boundary]], np.int32)
        ended = [part for ids in parts for part in (ids, end)]
        return np.concatenate(ended[:-1])

    def encode_spans(self, text: str) -> tuple[Ids, list[tuple[int, int]]]:
        ids: list[int] = []
        spans: list[tuple[int, int]] = []
        start = 0
        lines = text.split("\n")
        for number, line in enumerate(lines):
            encoding = self.backend.encode(line, add_special_tokens=False)
            ids += encoding.ids
            spans += [(start + first, start + last) for first, last in encoding.offsets]
            start += len(line) + 1
            if number < len(lines) - 1:
                ids.append(self.vocab[self.boundary])
                spans.append((start - 1, start))
        return np.array(ids, np.int32), spans

    def _encode(self, word: str) -> list[int]:
        ids: list[int] = self.backend.encode(word, add_special_tokens=False).ids
        return ids

    def pieces(self) -> list[bytes]:
        pieces = [b""] * self.vocab_size
        for token, i in self.vocab.items():
            byte = _BYTE.fullmatch(token) if self._has_bytes else None
            if token == self.boundary:
                pieces[i] = b"\n"
            elif token == self.unknown:
                pieces[i] = "�".encode()
            elif byte is not None:
                pieces[i] = bytes([int(byte[1], 16)])
            elif token not in self._special:
                pieces[i] = token.replace(SPACE, " ").encode()
        return pieces


@dataclass(frozen=True)
class _Piece:
    text: str
    score: float
    kind: int = _NORMAL


@dataclass(frozen=True)
class _Model:
    """What is read of a model of SentencePiece."""

    pieces: Sequence[_Piece]
    is_bpe: bool = False
    table: bytes = b""
    """The compiled table of characters to rewrite."""
    table_name: str = ""
    dummy_prefix: bool = True
    trimmed: bool = True
    """Whether spaces at the ends and beside others are dropped."""
    user_defined: list[str] = field(default_factory=list)


def read_model(path: Path) -> tokenizers.Tokenizer:
    """Convert a model of SentencePiece."""
    with intact(path, "is not a model of SentencePiece that works", "restore it from a copy"):
        return _backend(_parsed(regular(path).read_bytes()))


def tied_note(path: Path) -> list[str]:
    """What to tell about a model of SentencePiece that may split a text in another way than its
    tokenizer.json, if it is one."""
    model = _parsed(regular(path).read_bytes())
    scores = {piece.text: piece.score for piece in model.pieces if piece.kind == _NORMAL}
    run = None if model.is_bpe else tied_run(scores)
    if run is None:
        return []
    return [
        f"SentencePiece may split a text such as '{run}' into the same pieces in another order: "
        "two splits are equally likely, and rounding decides there"
    ]


def _parsed(data: bytes) -> _Model:
    """Parse sentencepiece_model.proto: pieces 1, trainer 2, normalizer 3."""
    parts = _fields(data)
    trainer, normal = (_fields(b"".join(parts.get(n, []))) for n in (2, 3))
    pieces = []
    for part in parts.get(1, []):
        entry = _fields(part)
        (score,) = struct.unpack("<f", _last(entry, 2, b"\0\0\0\0"))
        pieces.append(_Piece(_last(entry, 1, b"").decode(), score, _last(entry, 3, _NORMAL)))
    if not pieces:
        raise ValueError("it has no pieces")
    kind = _last(trainer, 3, _UNIGRAM)
    refused = {
        f"of the kind {'word' if kind == 3 else 'char'}": kind not in (_UNIGRAM, _BPE),
        "with spaces at the ends of words": bool(_last(trainer, 24, 0)),
        "that does not mark spaces": not _last(normal, 5, 1),
        "with unused pieces": any(piece.kind == _UNUSED for piece in pieces),
    }
    for what, is_so in refused.items():
        if is_so:
            raise UsageError(
                f"a model of SentencePiece {what} cannot be converted to a tokenizer.json",
                "train one of the kind unigram or bpe",
            )
    return _Model(
        pieces=pieces,
        is_bpe=kind == _BPE,
        table=_last(normal, 2, b""),
        table_name=_last(normal, 1, b"").decode(),
        dummy_prefix=bool(_last(normal, 3, 1)),
        trimmed=bool(_last(normal, 4, 1)),
        user_defined=[piece.text for piece in pieces if piece.kind == _USER_DEFINED],
    )


def _backend(model: _Model, *, lowercase: bool = False) -> tokenizers.Tokenizer:
    pieces = list(model.pieces)
    names = {piece.text for piece in pieces}
    if not names & {"</s>", BOUNDARY, "<s>"}:
        pieces.append(_Piece(BOUNDARY, 0.0, _CONTROL))
    has_bytes = any(piece.kind == _BYTE_PIECE for piece in pieces)
    unknown = next((i for i, piece in enumerate(pieces) if piece.kind == _UNKNOWN), None)
    if model.is_bpe:
        backend = tokenizers.Tokenizer(_bpe(pieces, unknown, has_bytes, model.user_defined))
    else:
        scored = [(piece.text, score) for piece, score in zip(pieces, _scores(pieces), strict=True)]
        backend = tokenizers.Tokenizer(models.Unigram(scored, unknown, has_bytes))
    ordinary = [p.text for p in pieces if p.kind in (_NORMAL, _USER_DEFINED)]
    apart = [piece.text for piece in pieces if piece.kind in (_UNKNOWN, _CONTROL, _BYTE_PIECE)]
    if model.is_bpe and not model.user_defined:
        apart = []  # no merge makes one
    fillers, cuts = hidden_names(apart, ordinary, has_bytes=has_bytes, always=model.is_bpe)
    backend.normalizer = _normaliser(_rewriting(model), model, fillers, lowercase=lowercase)
    # A cut is allowed where no piece spans it.
    steps = []
    if model.is_bpe and model.user_defined:
        alternatives = sorted(map(re.escape, model.user_defined), key=len, reverse=True)
        steps.append(pre_tokenizers.Split(Regex("|".join(alternatives)), "isolated"))
    steps += cuts
    if not any(SPACE in text[1:] for text in ordinary):
        steps.append(pre_tokenizers.Split(SPACE, "merged_with_next"))
    if steps:
        backend.pre_tokenizer = steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace(SPACE, " "),
            *([decoders.ByteFallback()] if has_bytes else []),
            decoders.Fuse(),
            *([decoders.Strip(" ", 1, 0)] if model.dummy_prefix else []),
        ]
    )
    return backend


def _rewriting(model: _Model) -> list[normalizers.Normalizer]:
    """The steps that rewrite characters by the model's table."""
    if not model.table:
        return []
    steps = rewriting(model.table, model.table_name)
    if steps is None:
        raise UsageError(
            "a model of SentencePiece with a table of characters of its own, which does more than "
            "compose characters, cannot be converted to a tokenizer.json",
            "train one with the table nmt_nfkc, nfkc or identity",
        )
    return list(steps)


def _normaliser(
    steps: Sequence[normalizers.Normalizer],
    model: _Model | None = None,
    last: Sequence[normalizers.Normalizer] = (),
    *,
    lowercase: bool,
) -> normalizers.Normalizer:
    model = model or _Model(pieces=())
    steps = list(steps)
    if model.trimmed:
        steps.append(normalizers.Replace(Regex(rf"\A +|[ {SPACE}]+\z"), ""))
        steps.append(normalizers.Replace(Regex(" {2,}"), " "))
    if model.dummy_prefix:
        steps.append(normalizers.Prepend(SPACE))
    made = normaliser(*steps, normalizers.Replace(" ", SPACE), *last, lowercase=lowercase)
    assert made is not None
    return made


def _scores(pieces: Sequence[_Piece]) -> list[float]:
    """The scores of a Unigram model, as SentencePiece uses them."""
    normal = [piece.score for piece in pieces if piece.kind == _NORMAL]
    lowest, highest = min(normal, default=0.0), max(normal, default=0.0)
    longest = max(len(piece.text) for piece in pieces)
    worst = longest * (lowest - 1.0) - 1.0

    def score(piece: _Piece) -> float:
        if piece.kind == _USER_DEFINED:
            return len(piece.text.encode()) * highest - 0.1
        return piece.score if piece.kind == _NORMAL else worst

    return [score(piece) for piece in pieces]


def _bpe(
    pieces: Sequence[_Piece], unknown: int | None, has_bytes: bool, user_defined: Sequence[str]
) -> models.BPE:
    ranks = {piece.text: -piece.score for piece in pieces if piece.kind == _NORMAL and piece.text}
    ordered = sorted((p for p in ranks if len(p) > 1), key=lambda text: ranks[text])
    pairs = [pair_of(tuple(text), ranks, "".join) for text in ordered]
    return models.BPE(
        {piece.text: i for i, piece in enumerate(pieces)},
        [pair for pair in pairs if pair is not None],
        unk_token=None if unknown is None else pieces[unknown].text,
        fuse_unk=True,
        byte_fallback=has_bytes,
        ignore_merges=bool(user_defined),
    )


def pair_of(
    parts: Sequence[Any], ranks: Mapping[Any, float], join: Callable[[Sequence[Any]], Any]
) -> tuple[Any, Any] | None:
    """Return the two parts that are merged last into a token, given its smallest parts.

    Merges go by rank, the leftmost of equals first. All merges below the token's own rank have been
    made inside of it, in any text, when the token is made: so the pair is always the same. None:
    no merge makes it.
    """
    parts = list(parts)
    limit = ranks[join(parts)]
    while len(parts) > 2:
        found = [(ranks.get(join(parts[i : i + 2]), limit), i) for i in range(len(parts) - 1)]
        rank, place = min(found)
        if rank >= limit:
            return None
        parts[place : place + 2] = [join(parts[place : place + 2])]
    return parts[0], parts[1]


def _fields(data: bytes) -> dict[int, list[Any]]:
    """Parse a message of protocol buffers: the values of each field, in order."""
    found: dict[int, list[Any]] = {}
    for number, value in _parts(data):
        found.setdefault(number, []).append(value)
    return found


def _last(fields: Mapping[int, list[Any]], number: int, default: Any) -> Any:
    return fields[number][-1] if number in fields else default


def _parts(data: bytes) -> Iterator[tuple[int, Any]]:
    place = 0

    def varint() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = data[place]
            place += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    while place < len(data):
        number, wire = divmod(varint(), 8)
        if wire == 0:
            yield number, varint()
            continue
        if wire not in (1, 2, 5):
            raise ValueError(f"it has a field of the unknown type {wire}")
        size = varint() if wire == 2 else 8 if wire == 1 else 4
        if place + size > len(data):
            raise ValueError("it is cut off")
        yield number, data[place : place + size]
        place += size
