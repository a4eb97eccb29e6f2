"""The compact layout of a back-off model: packed bits, without links, optionally quantised.

Single tokens are as in the plain layout. The n-grams of each longer length are records of the same
number of bits, sorted, one after the other:

    word      as many bits as the largest id has
    logprob   32 bits, or the number of a bin (`quantising`)
    back-off  likewise; not in the longest n-grams
    pointer   first continuation, less that of the first record of the same block of 64

A block whose continuations do not fit into the bits of a pointer has its pointers whole, in `wide`:
the bits are chosen to make the sum of both small. That is the purpose of KenLM's `-a`, without a
search. Pointers count from the first n-gram of the next length.

    records    all records; each length begins with a new 64-bit word
    bases      the pointer of the first record of each block; -1 - i: see `wide`, block i
    wide       (blocks, 64) whole pointers
    roots      (V + 1,) pointers of single tokens
    unigrams   (V, 2) log probability and back-off weight of single tokens
    bins       the tables of log probabilities, then of back-off weights, of each length

Rounded probabilities no longer sum to one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from elman.base.errors import UsageError
from elman.base.threads import in_order
from elman.ngrams import compact_walking
from elman.ngrams.backoff import BackoffModel, context_rows, leaf_rows
from elman.ngrams.compact_walking import (
    BACKOFF,
    BACKOFF_BINS,
    BASES,
    BLOCK,
    BLOCK_BITS,
    EXACT,
    NUM_COLUMNS,
    POINTER,
    PROB,
    PROB_BINS,
    SIZE,
    START,
    WIDTH,
    WORD,
    Words64,
)
from elman.ngrams.interpolation import Floats
from elman.ngrams.mapped import ArrayFile, damaged, write_arrays
from elman.ngrams.mapped import Floats as FloatColumns
from elman.ngrams.model import NgramModel
from elman.ngrams.quantising import MOST_BITS, encode, exact_codes, make_bins
from elman.ngrams.trie import MEMORY, Array, Room
from elman.ngrams.walking import Ids, Nodes

LAYOUT = "compact"
ROUNDED = (
    "quantised: probabilities are rounded and do not quite sum to one; what was measured when the "
    "model was trained holds for the numbers before that"
)
FORMAT = 2
_ARRAYS = {
    "records": "U64",
    "bases": "I32",
    "wide": "I32",
    "roots": "I32",
    "unigrams": "F32",
    "bins": "F32",
}
_FLOATS = {"unigrams": FloatColumns(width=2), "bins": FloatColumns()}
_PIECE = 1 << 18
"""Records that are packed at a time; a multiple of 64, so that pieces end with a 64-bit word."""


@dataclass(frozen=True)
class Bits:
    """The bits of a log probability and of a back-off weight."""

    prob: int = EXACT
    backoff: int = EXACT

    def __post_init__(self) -> None:
        for bits in (self.prob, self.backoff):
            if bits != EXACT and not 2 <= bits <= MOST_BITS:
                raise UsageError(
                    f"n-grams cannot be quantised to {bits} bits",
                    f"use 2 to {MOST_BITS}; 8 is usual",
                )

    @property
    def is_exact(self) -> bool:
        return self.prob == self.backoff == EXACT


@dataclass(kw_only=True)
class CompactModel(NgramModel):
    records: Words64
    bases: Array
    wide: Array
    roots: Array
    unigram_floats: Floats
    bins: Floats
    shape: Nodes
    """(order, 10) by length - 1: see `compact_walking`."""
    closed: bool
    """Whether the suffix of every n-gram is stored."""

    loops: ClassVar[Any] = compact_walking

    @property
    def layout(self) -> str:
        bits = self.bits
        if bits.is_exact:
            return "compact"
        return f"compact, log probabilities of {bits.prob} bits, back-off weights of {bits.backoff}"

    @property
    def bits(self) -> Bits:
        return Bits(*self.about["bits"])

    @cached_property
    def unigrams(self) -> Floats:
        return self.unigram_floats[:, 0].copy()

    def context_lengths(self, contexts_BC: Ids) -> Nodes:
        lengths_B = np.zeros(len(contexts_BC), np.int64)
        self._run(compact_walking.followed, self.after(contexts_BC), lengths_B)
        return lengths_B

    def bytes_up_to(self, length: int) -> int:
        widths = self.shape[:length, WORD : POINTER + 1].copy()
        widths[-1, 2:] = 0  # the longest have neither weights nor continuations
        shape = make_shape(self.level_starts[: length + 1], widths)
        num_bases = sum(_num_blocks(row) for row in shape[1:-1])
        num_wide = int((self.bases[:num_bases] < 0).sum())
        return (
            self.unigram_floats.nbytes
            + (self.roots.nbytes if length > 1 else 4)
            + 8 * _num_words(shape)
            + 4 * (num_bases + BLOCK * num_wide + _num_bins(shape))
        )

    def plain(self) -> BackoffModel:
        self.check()
        starts = self.level_starts
        num_contexts, num_ngrams = starts[-2], starts[-1]
        words = np.empty(num_ngrams, np.int32)
        words[: self.vocab_size] = np.arange(self.vocab_size)
        logprob = np.zeros(num_ngrams + 1, np.float32)
        backoff = np.zeros(num_contexts + 1, np.float32)
        first_child = np.full(num_contexts + 1, num_ngrams, np.int32)
        logprob[: self.vocab_size] = self.unigrams
        if self.order > 1:
            backoff[: self.vocab_size] = self.unigram_floats[:, 1]
            first_child[: self.vocab_size] = self.roots[:-1] + np.int32(starts[1])
        for level in range(1, self.order):
            some = slice(starts[level], starts[level + 1])
            self._run(
                compact_walking.unpack,
                *(level, words[some], first_child[:-1][some], logprob[some], backoff[:-1][some]),
            )
            first_child[:-1][some] += np.int32(starts[min(level + 1, self.order - 1)])
        suffix = np.full(num_ngrams + 1, -1, np.int32)
        inner = np.append(logprob[:num_contexts], np.float32(0))
        model = BackoffModel(
            contexts=context_rows(first_child, suffix[: num_contexts + 1], inner, backoff),
            leaves=leaf_rows(suffix[num_contexts:-1], logprob[num_contexts:-1]),
            words=words,
            level_starts=starts,
            boundary_id=self.boundary_id,
            about={name: value for name, value in self.about.items() if name != "bits"},
        )
        model.check()
        model.link()
        return model

    def _arrays(self) -> tuple[Any, ...]:
        return (
            *(self.records, self.bases, self.wide, self.roots, self.unigram_floats, self.bins),
            *(self.shape, self.closed, self.boundary_id),
        )

    def _no_contexts(self, number: int) -> Nodes:
        return np.full((number, self.order - 1), -1, np.int64)


def save_compact(
    path: Path, model: BackoffModel, bits: Bits | None = None, extra: dict[str, Any] | None = None
) -> None:
    """Write a model in the compact layout; `extra` goes into the header of the file."""
    model.check()
    packing = _Packing(model, bits or Bits())
    about = {**model.about, "bits": [packing.bits.prob, packing.bits.backoff]}
    if not packing.bits.is_exact:
        about["notes"] = [*(note for note in about.get("notes", []) if note != ROUNDED), ROUNDED]
    header = {
        "format": FORMAT,
        "layout": LAYOUT,
        "level_starts": model.level_starts,
        "boundary_id": model.boundary_id,
        "closed": packing.closed,
        "widths": packing.shape[:, WORD : POINTER + 1].tolist(),
        "about": about,
    }
    arrays = packing.small_arrays()
    shapes = {name: (_ARRAYS[name], array.shape, [array]) for name, array in arrays.items()}
    num_words = _num_words(packing.shape)
    records = {"records": ("U64", [num_words], packing.records())}
    write_arrays(path, header | (extra or {}), {**records, **shapes})


class _Packing:
    """The arrays of a plain model in the compact layout."""

    def __init__(self, model: BackoffModel, bits: Bits) -> None:
        self.model, self.bits = model, bits
        starts, order = model.level_starts, model.order
        widths = np.zeros((order, 4), np.int64)
        self.tables: dict[tuple[int, int], Floats] = {}
        self.pointers = [_Pointers(self._first_child(level)) for level in range(1, order - 1)]
        for level in range(1, order):
            widths[level, :2] = max(1, (model.vocab_size - 1).bit_length()), bits.prob
            if bits.prob != EXACT:
                self.tables[level, 0] = make_bins(self._logprob(level), bits.prob)
            if level + 1 < order:
                widths[level, 2:] = bits.backoff, self.pointers[level - 1].width
                if bits.backoff != EXACT:
                    weights = self._backoff(level)
                    self.tables[level, 1] = make_bins(weights, bits.backoff, keep_zero=True)
        self.shape = make_shape(starts, widths)

    @cached_property
    def closed(self) -> bool:
        """Whether the stored suffix of each n-gram has one token less."""
        starts, model = self.model.level_starts, self.model
        suffixes = [model.contexts[:-1, 1], model.leaves[:, 0]]
        for level in range(1, model.order):
            last = level + 1 == model.order
            suffix = suffixes[1] if last else suffixes[0][starts[level] : starts[level + 1]]
            if len(suffix) and int(suffix.min()) < starts[level - 1]:
                return False
        return True

    def small_arrays(self) -> dict[str, Any]:
        model, size = self.model, self.model.vocab_size
        unigrams = np.zeros((size, 2), np.float32)
        unigrams[:, 0] = model.unigrams
        roots = np.zeros(1, np.int32)
        if model.order > 1:
            unigrams[:, 1] = model.backoff[:size]
            roots = model.first_child[: size + 1] - np.int32(size)
        wide, bases, num_wide = [np.empty((0, BLOCK), np.int32)], [np.empty(0, np.int32)], 0
        for pointers in self.pointers:
            bases.append(pointers.bases(num_wide))
            wide.append(pointers.wide)
            num_wide += len(pointers.wide)
        tables = [self.tables[key] for key in sorted(self.tables)]
        return {
            "bases": np.concatenate(bases),
            "wide": np.concatenate(wide),
            "roots": roots,
            "unigrams": unigrams,
            "bins": np.concatenate([np.empty(0, np.float32), *tables]),
        }

    def records(self) -> Iterator[Words64]:
        """Yield the packed records in pieces, and a word that may be read past their end."""
        pieces = [
            (level, first)
            for level in range(1, self.model.order)
            for first in range(0, int(self.shape[level, SIZE]) + 1, _PIECE)
        ]
        for packed in in_order(self._piece, pieces):
            yield packed
            self.model.room.relieve()
        yield np.zeros(1, np.uint64)

    def _piece(self, place: tuple[int, int]) -> Words64:
        """Return records of a length from one on; the last has nothing but a pointer."""
        level, first = place
        number = int(min(_PIECE, self.shape[level, SIZE] + 1 - first))
        begin, end = self.model.level_starts[level : level + 2]
        some = slice(begin + first, min(begin + first + number, end))
        words = np.zeros(number, np.int32)
        codes = np.zeros((2, number), np.uint32)
        offsets = np.zeros(number, np.int32)
        stored = some.stop - some.start
        words[:stored] = self.model.words[some]
        codes[0, :stored] = self._codes(self._logprob(level)[first : first + number], level, 0)
        if level + 1 < self.model.order:
            weights = self._backoff(level)[first : first + number]
            codes[1, :stored] = self._codes(weights, level, 1)
            offsets[:] = self.pointers[level - 1].offsets(first, number)
        widths = self.shape[level, WORD : POINTER + 1]
        packed = np.zeros(-(-number * int(widths.sum()) // 64) + 2, np.uint64)
        compact_walking.pack(words, codes[0], codes[1], offsets, widths, packed)
        return packed[:-2]

    def _codes(self, values: Floats, level: int, which: int) -> Any:
        table = self.tables.get((level, which))
        return exact_codes(values) if table is None else encode(values, table)

    def _logprob(self, level: int) -> Floats:
        """The log probabilities of a length above 1, as a view."""
        begin, end = self.model.level_starts[level : level + 2]
        if level + 1 == self.model.order:
            return self.model.leaves.view(np.float32)[:, 1]
        return self.model.contexts.view(np.float32)[begin:end, 2]

    def _backoff(self, level: int) -> Floats:
        begin, end = self.model.level_starts[level : level + 2]
        return self.model.backoff[begin:end]

    def _first_child(self, level: int) -> Array:
        begin, end = self.model.level_starts[level : level + 2]
        return self.model.first_child[begin : end + 1] - np.int32(end)


class _Pointers:
    """The pointers of one length, in blocks."""

    def __init__(self, first_child: Array) -> None:
        num_blocks = -(-len(first_child) // BLOCK)
        self.starts = first_child[::BLOCK]
        ends = np.append(first_child[BLOCK - 1 :: BLOCK], first_child[-1])[:num_blocks]
        self.first_child = first_child
        # The bits of the largest offset in each block.
        bits = np.ceil(np.log2((ends - self.starts).astype(np.float64) + 1)).astype(np.int64)
        num_wider = num_blocks - np.cumsum(np.bincount(bits, minlength=32))
        costs = len(first_child) * np.arange(32) + num_wider[:32] * BLOCK * 32
        self.width = int(np.argmin(costs))
        self.is_wide = bits > self.width
        self.wide = np.full((int(self.is_wide.sum()), BLOCK), first_child[-1], np.int32)
        for row, block in zip(self.wide, np.flatnonzero(self.is_wide).tolist(), strict=True):
            some = first_child[block * BLOCK : (block + 1) * BLOCK]
            row[: len(some)] = some

    def bases(self, num_wide: int) -> Array:
        """Return the bases, where that many wide blocks precede these."""
        numbers = -num_wide - np.cumsum(self.is_wide)  # the first is -1
        return np.where(self.is_wide, numbers, self.starts).astype(np.int32)

    def offsets(self, first: int, number: int) -> Array:
        blocks = np.arange(first, first + number) >> BLOCK_BITS
        offsets = self.first_child[first : first + number] - self.starts[blocks]
        return np.where(self.is_wide[blocks], 0, offsets).astype(np.int32)


def make_shape(level_starts: list[int], widths: Nodes) -> Nodes:
    """Return `CompactModel.shape`, given the widths of the four fields by length."""
    shape = np.zeros((len(widths), NUM_COLUMNS), np.int64)
    shape[:, WORD : POINTER + 1] = widths
    shape[:, WIDTH] = widths.sum(axis=1)
    shape[:, SIZE] = np.diff(level_starts)
    start, base, table = 0, 0, 0
    for level in range(1, len(shape)):
        row = shape[level]
        row[START], row[BASES], row[PROB_BINS] = start, base, table
        table += _table_size(row[PROB])
        row[BACKOFF_BINS] = table
        table += _table_size(row[BACKOFF])
        start += int(-(-(row[SIZE] + 1) * row[WIDTH] // 64) * 64)
        base += _num_blocks(row) if level + 1 < len(shape) else 0
    return shape


def _table_size(bits: int) -> int:
    return 1 << int(bits) if 0 < bits < EXACT else 0


def _num_bins(shape: Nodes) -> int:
    return sum(map(_table_size, shape[1:, PROB : BACKOFF + 1].ravel().tolist()))


def _num_blocks(row: Nodes) -> int:
    return int(row[SIZE] >> BLOCK_BITS) + 1


def _num_words(shape: Nodes) -> int:
    """Return the 64-bit words of all records, and the one after them."""
    last = shape[-1]
    return int(last[START] + -(-(last[SIZE] + 1) * last[WIDTH] // 64) * 64) // 64 + 1


def load_compact(path: Path, room: Room = MEMORY, *, small: int | None = None) -> CompactModel:
    """Open a model in the compact layout."""
    file = ArrayFile(path, _ARRAYS, FORMAT, _FLOATS, small=small)
    header, arrays = file.header, file.arrays
    for name in _ARRAYS:
        if name != "records":
            file.verify(name)
    shape = _checked_shape(header)
    if shape is None or not _consistent(header, arrays, shape):
        raise damaged(path, "its arrays do not belong together")
    return CompactModel(
        records=arrays["records"],
        bases=arrays["bases"],
        wide=arrays["wide"].reshape(-1),
        roots=arrays["roots"],
        unigram_floats=arrays["unigrams"],
        bins=arrays["bins"],
        shape=shape,
        closed=header["closed"],
        level_starts=header["level_starts"],
        boundary_id=header["boundary_id"],
        about=header["about"],
        file=file,
        room=room,
    )


def _checked_shape(header: dict[str, Any]) -> Nodes | None:
    """Return the shape that a header describes; None if it describes none."""
    starts, widths, about = (header.get(name) for name in ("level_starts", "widths", "about"))
    lists: list[Any] = [starts, *widths] if isinstance(widths, list) else [None]
    if not all(
        isinstance(row, list) and all(type(n) is int and 0 <= n < 2**31 for n in row)
        for row in lists
    ):
        return None
    if (
        not isinstance(starts, list)
        or len(starts) < 2
        or (starts[0], sorted(starts)) != (0, starts)
        or len(lists) != len(starts)
        or any(len(row) != 4 or max(row) > EXACT for row in lists[1:])
        or not isinstance(about, dict)
        or not {"normalised", "notes", "bits"} <= set(about)
        or type(header.get("closed")) is not bool
        or type(header.get("boundary_id")) is not int
        or not 0 <= header["boundary_id"] < starts[1]
    ):
        return None
    return make_shape(starts, np.array(lists[1:], np.int64).reshape(-1, 4))


def _consistent(header: dict[str, Any], arrays: dict[str, Any], shape: Nodes) -> bool:
    """Check shapes, and everything that loops take for granted."""
    starts, order, bits = header["level_starts"], len(shape), header["about"]["bits"]
    size, inner = starts[1], range(1, order - 1)
    roots, bases, wide = arrays["roots"], arrays["bases"], arrays["wide"]
    return (
        isinstance(bits, list)
        and len(bits) == 2
        and all(shape[level, PROB : BACKOFF + 1].tolist() == bits for level in inner)
        and (order == 1 or shape[-1, PROB : POINTER + 1].tolist() == [bits[0], 0, 0])
        and all(type(n) is int and (2 <= n <= MOST_BITS or n == EXACT) for n in bits)
        and all(shape[1:, WORD] == max(1, (size - 1).bit_length()))
        and not shape[0, WORD : POINTER + 1].any()
        and arrays["records"].shape == (_num_words(shape),)
        and arrays["unigrams"].shape == (size, 2)
        and arrays["bins"].shape == (_num_bins(shape),)
        and roots.shape == ((size + 1) if order > 1 else 1,)
        and bases.shape == (sum(_num_blocks(shape[level]) for level in inner),)
        and wide.ndim == 2
        and wide.shape[1] == BLOCK
        and (not bases.size or int(bases.min()) >= -len(wide))
        and (order == 1 or roots[0] == 0)
        and (order == 1 or int(roots[-1]) == int(shape[1, SIZE]))
    )


def is_compact(header: dict[str, Any]) -> bool:
    return header.get("layout") == LAYOUT
