"""A sorted run of counts, compressed: one file for each length, and where its chunks begin.

    3.packed   3.chunks

A chunk has 4,096 n-grams: the last token of each, its count, and how many n-grams continue it, as
32-bit integers. These are small numbers, mostly 1, so the first bytes of all come first, then the
second ones, and so on; zstd at its fastest level then leaves a seventh. Chunks are read in any
order, so the ranges of a merge can start anywhere.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elman.base.errors import ElmanError
from elman.base.threads import in_order
from elman.ngrams.compiled import compiled
from elman.ngrams.trie import Array, CountTrie, Level

CHUNK = 1 << 12
"""N-grams that are compressed together."""
_LEVEL = 1
_FIELDS = 3
_EMPTY = np.empty(0, np.int32)
_OWN = threading.local()


def can_pack() -> bool:
    """Whether zstandard is installed."""
    try:
        return find_spec("zstandard") is not None
    except ValueError:  # None in sys.modules
        return False


class PackedRun:
    """The files of a run whose longest n-grams have `order` tokens."""

    def __init__(self, folder: Path, order: int) -> None:
        self.folder = folder
        self.order = order

    def write(self, trie: CountTrie, num_threads: int | None = None) -> None:
        for number, level in enumerate(trie.levels):
            inner = number + 1 < self.order
            starts = range(0, len(level), CHUNK)
            chunks = [[0, 0]]
            with self.packed_file(number).open("wb") as file:
                for packed in in_order(partial(_pack, level, inner), starts, num_threads):
                    file.write(packed)
                    end = min(len(chunks) * CHUNK, len(level))
                    chunks.append([file.tell(), int(level.first_child[end]) if inner else 0])
            np.array(chunks, np.int64).tofile(self.chunks_file(number))

    def read(self, level: int, first: int, into: Sequence[Array]) -> None:
        """Fill `words`, `counts` and the number of continuations of n-grams from `first` on."""
        at, end = first, first + len(into[0])
        while at < end:
            start, stop = at % CHUNK, min(CHUNK, at % CHUNK + end - at)
            for field, found in zip(into, self._unpack(level, at // CHUNK), strict=True):
                field[at - first : at - first + stop - start] = found[start:stop]
            at += stop - start

    def first_child(self, level: int, index: int) -> int:
        chunk, place = divmod(index, CHUNK)
        before = int(self.places(level, chunk, 1)[0, 1])
        if not place:
            return before
        return before + int(self._unpack(level, chunk)[2, :place].sum(dtype=np.int64))

    def _unpack(self, level: int, chunk: int) -> NDArray[np.int32]:
        """(3, n-grams) the fields of a chunk."""
        start, end = self.places(level, chunk, 2)[:, 0].tolist()
        path = self.packed_file(level)
        with path.open("rb") as file:
            file.seek(start)
            packed = file.read(end - start)
        try:
            planes = np.frombuffer(_coders().decompress(packed), np.uint8)
        except _zstandard().ZstdError as error:
            raise OSError(f"{path} is damaged: {error}") from error
        fields = np.empty((_FIELDS, len(planes) // (4 * _FIELDS)), np.int32)
        _from_planes(planes, fields)
        return fields

    def places(self, level: int, chunk: int, number: int) -> NDArray[np.int64]:
        """(number, 2) where chunks begin in the file, and their first continuations."""
        path = self.chunks_file(level)
        found = np.fromfile(path, np.int64, 2 * number, offset=16 * chunk)
        if len(found) != 2 * number:
            raise OSError(f"{path} was cut short")
        return found.reshape(number, 2)

    def packed_file(self, level: int) -> Path:
        return self.folder / f"{level + 1}.packed"

    def chunks_file(self, level: int) -> Path:
        return self.folder / f"{level + 1}.chunks"


def packed_sizes(trie: CountTrie) -> list[int]:
    """Return the bytes that each level takes in a run."""
    return [
        sum(len(_pack(level, level is not trie.levels[-1], start)) for start in starts)
        for level in trie.levels
        for starts in [range(0, len(level), CHUNK)]
    ]


def _pack(level: Level, inner: bool, start: int) -> bytes:
    some = slice(start, start + CHUNK)
    words, counts = level.words[some], level.counts[some]
    planes = np.empty(4 * _FIELDS * len(words), np.uint8)
    first_child = level.first_child[start : start + len(words) + 1] if inner else _EMPTY
    _to_planes(words, counts, first_child, planes)
    packed: bytes = _coders().compress(planes.data)
    return packed


@compiled
def _to_planes(words: Array, counts: Array, first_child: Array, planes: NDArray[np.uint8]) -> None:
    size = len(words)
    for byte in range(4):
        shift, at = np.int32(8 * byte), byte * size
        for i in range(size):
            planes[at + i] = (words[i] >> shift) & 255
        for i in range(size):
            planes[at + 4 * size + i] = (counts[i] >> shift) & 255
        for i in range(size):
            children = first_child[i + 1] - first_child[i] if len(first_child) else np.int32(0)
            planes[at + 8 * size + i] = (children >> shift) & 255


@compiled
def _from_planes(planes: NDArray[np.uint8], fields: NDArray[np.int32]) -> None:
    size = fields.shape[1]
    for field in range(3):
        at = 4 * field * size
        for i in range(size):
            fields[field, i] = (
                np.int32(planes[at + i])
                | np.int32(planes[at + size + i]) << 8
                | np.int32(planes[at + 2 * size + i]) << 16
                | np.int32(planes[at + 3 * size + i]) << 24
            )


def _coders() -> threading.local:
    """The compressor and the decompressor of this thread; making them takes a third of the time."""
    if not hasattr(_OWN, "compress"):
        zstandard = _zstandard()
        _OWN.compress = zstandard.ZstdCompressor(level=_LEVEL).compress
        _OWN.decompress = zstandard.ZstdDecompressor().decompress
    return _OWN


def _zstandard() -> Any:
    try:
        return import_module("zstandard")
    except ImportError as error:
        raise ElmanError(
            "the runs of this text are compressed, which needs the zstandard package",
            "pip install 'elman[zstd]'",
        ) from error
