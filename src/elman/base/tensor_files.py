"""Write and read files of tensors: safetensors with a JSON header and checksums.

Weights, train states and n-grams are in this format, and any safetensors reader can open it:

    8 bytes             the size of the header, little-endian
    header              JSON: metadata and a table of tensors, padded with spaces to 64 bytes
    tensors             raw bytes, one tensor after the other, without gaps

The metadata entry `elman` is JSON with everything that is not a tensor. `checksums` in it has a
checksum of each tensor (the CRC-32 of those of its pieces of 4 MiB, `_chunk_sum`), and the metadata
entry `check` has the CRC-32 of the header itself, computed with zeros in its place. A file that is
mapped has the CRC-32 of each block of 64 KiB of each tensor instead, in the tensor
`block_checksums`, so that only blocks that are used need to be read. Files of earlier versions and
of other programs have no checksums; they open all the same.

Opening reads the header alone and checks that the table accounts for every byte of the file, so a
caller can compare shapes before it takes any memory.
"""

from __future__ import annotations

import io
import json
import math
import mmap
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from elman.base.documents import RESTORE, intact
from elman.base.errors import ElmanError
from elman.base.files import explained, regular, replacing, sync
from elman.base.shared_file import SharedFile
from elman.base.threads import default_threads, in_threads

T = TypeVar("T")
FillRows = Callable[[int, int, NDArray[Any]], None]
"""Fills an array with the rows of a tensor from the first number up to the second."""

ITEM_SIZES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip
"""Bytes of one number of each type of the format."""
BLOCK_SHIFT = 16
BLOCK_SIZE = 1 << BLOCK_SHIFT
"""Bytes under one checksum in files that are mapped: byte i is in block i >> BLOCK_SHIFT."""

ALIGNMENT = 64
"""Bytes of a cache line, and what torch aligns tensors to."""

FAULT = "is damaged or cut short"
_LARGEST_HEADER = 1 << 24
_MOST_AXES = 64
_CHUNK = 1 << 22
_SYNCED_AT_ONCE = 1 << 26
_SUMMED_AT_ONCE = 1 << 19
"""Bytes of one thread's piece of work."""
_NUM_SUMS = 1021
_BLOCKS = "block_checksums"
NUMPY_TYPES = {"I32": "<i4", "I64": "<i8", "U64": "<u8", "F32": "<f4"}
"""Types of arrays that can be mapped."""
_BEGIN = b'{"__metadata__":{"check":"'
_ZERO = "00000000"
_MARK = rb"\"checksums\""


@dataclass(frozen=True)
class Entry:
    """A tensor in the table of a file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    """Position of its first byte in the file."""
    end: int

    @property
    def num_bytes(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class TensorFile:
    """An open file, of which only the header has been read."""

    path: Path
    handle: io.BufferedReader
    header: dict[str, Any]
    table: dict[str, Entry]
    """The tensors by name, without block checksums."""
    checksums: dict[str, int]
    """The checksum of each tensor; empty if the file is mapped, or has none."""
    blocks: dict[str, NDArray[np.uint32]]
    """CRC-32 of each block of each tensor of a file to be mapped."""

    @property
    def is_checked(self) -> bool:
        return bool(self.checksums or self.blocks) or not self.table

    def read_into(self, buffers: Mapping[str, Any]) -> None:
        """Fill a buffer of bytes for each name; raise an error if a checksum does not match."""
        with explained(self.path):
            for name, buffer in buffers.items():
                sums = bytearray()
                for chunk in self._chunks(name, memoryview(buffer)):
                    sums += _chunk_sum(chunk) if name in self.checksums else b""
                self._compare(name, sums)

    def mapped(self) -> mmap.mmap:
        """Map the file, privately, and verify its tensors; what is changed in memory is copied."""
        with explained(self.path):
            data = mmap.mmap(self.handle.fileno(), 0, access=mmap.ACCESS_COPY)
        for name, entry in self.table.items():
            sums = bytearray()
            with memoryview(data) as view:
                for start in range(entry.start, entry.end, _CHUNK):
                    sums += _chunk_sum(view[start : min(start + _CHUNK, entry.end)])
            self._compare(name, sums)
        return data

    def verify(self) -> None:
        """Read the whole file; raise an error if any part of it was changed."""
        buffer = memoryview(bytearray(_CHUNK))
        with explained(self.path):
            for name in self.table:
                sums, index = bytearray(), 0
                for chunk in self._chunks(name, buffer):
                    sums += _chunk_sum(chunk)
                    for start in range(0, len(chunk), BLOCK_SIZE) if name in self.blocks else ():
                        block = chunk[start : start + BLOCK_SIZE]
                        if zlib.crc32(block) != self.blocks[name][index]:
                            raise self._changed(name)
                        index += 1
                self._compare(name, sums)

    def _compare(self, name: str, sums: bytearray) -> None:
        if name in self.checksums and self.checksums[name] != zlib.crc32(sums):
            raise self._changed(name)

    def _chunks(self, name: str, buffer: memoryview) -> Iterator[memoryview]:
        """Read a tensor into `buffer`, again from its beginning if the buffer is smaller."""
        entry = self.table[name]
        self.handle.seek(entry.start)
        left, position = entry.num_bytes, 0
        while left:
            position = 0 if position == len(buffer) else position
            chunk = buffer[position : position + min(_CHUNK, left)]
            if self.handle.readinto(chunk) != len(chunk):
                raise damaged(self.path, "it was cut short while it was read")
            yield chunk
            position += len(chunk)
            left -= len(chunk)

    def _changed(self, name: str) -> ElmanError:
        return damaged(self.path, f"{name!r} was changed after it was written")


def write(
    path: Path,
    header: Mapping[str, Any],
    arrays: Mapping[str, tuple[str, Sequence[int], Iterable[Any]]],
    *,
    mapped: bool = False,
) -> None:
    """Write tensors, each given as type (I32, F32, ...), shape and consecutive parts, atomically.

    Parts are numpy arrays, which are converted to the type, or memory views of bytes. `mapped`
    writes a checksum of every block, for files that are mapped.
    """
    ordered = _ordered(arrays)
    shapes = {name: (dtype, list(shape)) for name, (dtype, shape, _) in ordered}
    sizes = {name: _num_bytes(dtype, shape) for name, (dtype, shape) in shapes.items()}
    summed = [_BLOCKS] if mapped else list(sizes)
    if mapped:
        shapes[_BLOCKS] = ("U8", [_num_blocks(sizes), 4])
    checksums = dict.fromkeys(summed, 0)
    with (
        replacing(path) as temporary,
        temporary.open("wb") as output,
        ThreadPoolExecutor(default_threads()) as aside,
        ThreadPoolExecutor(1) as syncing,
    ):
        unsynced, syncs = 0, []
        output.write(_encoded(header, shapes, checksums))
        all_blocks = bytearray()
        for name, (dtype, _, parts) in ordered:
            written, sums = 0, _Sums(aside, *((BLOCK_SIZE, _block_sum) if mapped else ()))
            for part in parts:
                data = _bytes(part, dtype)
                # Beside the writing: both release the GIL.
                sums.add(data)
                written += output.write(data)
                sums.wait()
                # Have the disk write meanwhile, so that there is little to wait for at the end.
                unsynced += len(data)
                if unsynced >= _SYNCED_AT_ONCE:
                    syncs.append(syncing.submit(sync, temporary))
                    unsynced = 0
            if written != sizes[name]:
                raise ValueError(f"{name} has {written} bytes; its shape needs {sizes[name]}")
            if mapped:
                all_blocks += sums.finished()
            else:
                checksums[name] = zlib.crc32(sums.finished())
        if mapped:
            output.write(all_blocks)
            sums = _Sums(aside)
            sums.add(memoryview(all_blocks))
            checksums[_BLOCKS] = zlib.crc32(sums.finished())
        output.seek(0)
        output.write(_encoded(header, shapes, checksums))
        for done in syncs:
            done.result()  # an error is reported to the first who syncs


def write_rows(
    path: Path,
    header: Mapping[str, Any],
    arrays: Mapping[str, tuple[str, Sequence[int], FillRows]],
    *,
    num_threads: int | None = None,
    piece_size: int = 1 << 20,
) -> None:
    """Write the file that `write` with `mapped` does, its rows made and written in threads.

    `piece_size` is how many bytes a thread has at a time. The bytes of a row divide a block.
    """
    num_threads = num_threads or default_threads()
    ordered = _ordered(arrays)
    shapes = {name: (dtype, list(shape)) for name, (dtype, shape, _) in ordered}
    sizes = {name: _num_bytes(dtype, shape) for name, (dtype, shape) in shapes.items()}
    sums = np.empty(_num_blocks(sizes), "<u4")
    shapes[_BLOCKS] = ("U8", [len(sums), 4])
    start, first_sum = len(_encoded(header, shapes, {_BLOCKS: 0})), 0
    pieces: list[tuple[str, int, int, int, int]] = []
    for name, size in sizes.items():
        row_size = math.prod(shapes[name][1][1:]) * ITEM_SIZES[shapes[name][0]]
        num_rows, step = shapes[name][1][0], max(BLOCK_SIZE, piece_size) // row_size
        for first in range(0, num_rows, step):
            at = first * row_size
            end = min(first + step, num_rows)
            pieces.append((name, first, end, start + at, first_sum + at // BLOCK_SIZE))
        start, first_sum = start + size, first_sum - (-size // BLOCK_SIZE)
    free: deque[NDArray[np.uint8]] = deque()
    unsynced, syncs = 0, []

    with (
        replacing(path) as temporary,
        SharedFile(temporary, start, num_threads) as output,
        ThreadPoolExecutor(1) as syncing,
    ):

        def write(piece: tuple[str, int, int, int, int]) -> None:
            nonlocal unsynced
            name, first, end, place, number = piece
            dtype, shape, fill = arrays[name]
            try:  # memory to use again: new memory takes as long as the rest
                buffer = free.pop()
            except IndexError:
                buffer = np.empty(max(BLOCK_SIZE, piece_size), np.uint8)
            size = _num_bytes(dtype, [end - first, *shape[1:]])
            fill(first, end, buffer[:size].view(NUMPY_TYPES[dtype]).reshape(-1, *shape[1:]))
            for at in range(0, size, BLOCK_SIZE):
                block = buffer[at : min(at + BLOCK_SIZE, size)]
                sums[number + at // BLOCK_SIZE] = zlib.crc32(block.data)
            output.put(place, buffer[:size])
            free.append(buffer)
            # Have the disk write meanwhile, so that there is little to wait for at the end.
            unsynced += size
            if unsynced >= _SYNCED_AT_ONCE:
                unsynced = 0
                syncs.append(syncing.submit(sync, temporary))

        in_threads(write, pieces, num_threads)
        output.put(start, sums)
        checksums = {_BLOCKS: zlib.crc32(_all_chunk_sums(sums))}
        output.put(0, _encoded(header, shapes, checksums))
        for done in syncs:
            done.result()  # an error is reported to the first who syncs


@contextmanager
def open_tensors(path: Path) -> Iterator[TensorFile]:
    """Open a file and check its header and its size; tensors are read on demand."""
    with explained(path):
        handle = regular(path).open("rb")
    with handle:
        with intact(path, FAULT):
            file = _parsed(path, handle)
        yield file


def damaged(path: Path, detail: str) -> ElmanError:
    return ElmanError(f"{path} {FAULT}: {detail}", RESTORE)


def _parsed(path: Path, handle: io.BufferedReader) -> TensorFile:
    num_bytes = handle.seek(0, 2)
    handle.seek(0)
    size = int.from_bytes(handle.read(8), "little")
    if not 2 <= size <= min(_LARGEST_HEADER, num_bytes - 8):
        raise ValueError("its header is cut off" if num_bytes else "it is empty")
    raw = handle.read(size)
    checked = raw.startswith(_BEGIN) or _MARK in raw
    if checked and raw != _with_check(raw):
        raise ValueError("its header was changed after it was written")
    entries = json.loads(raw)
    if not isinstance(entries, dict):
        raise ValueError("its header is not an object")
    metadata = entries.pop("__metadata__", {})
    header = json.loads(metadata.get("elman", "{}"))
    if not isinstance(header, dict):
        raise ValueError("its metadata is not an object")
    table = _table(entries, 8 + size, num_bytes)
    file = TensorFile(path, handle, header, table, {}, {})
    if checked:
        _take_checksums(file)
    return file


def _take_checksums(file: TensorFile) -> None:
    """Move the checksums out of the header and the table."""
    sums = {name: int(value, 16) for name, value in file.header.pop("checksums").items()}
    if _BLOCKS in sums:
        raw = bytearray(file.table[_BLOCKS].num_bytes)
        file.checksums[_BLOCKS] = sums.pop(_BLOCKS)
        file.read_into({_BLOCKS: raw})
        del file.checksums[_BLOCKS], file.table[_BLOCKS]
        all_blocks, start = np.frombuffer(raw, "<u4"), 0
        for name, entry in file.table.items():
            end = start + -(-entry.num_bytes // BLOCK_SIZE)
            file.blocks[name] = all_blocks[start:end]
            start = end
        if start != len(all_blocks):
            raise ValueError("its block checksums do not belong to its tensors")
    elif sums.keys() != file.table.keys():
        raise ValueError("its checksums do not belong to its tensors")
    file.checksums.update(sums)


def _table(entries: dict[str, Any], base: int, num_bytes: int) -> dict[str, Entry]:
    """Read the table of tensors, which together are the bytes from `base` to `num_bytes`."""
    table = {}
    for name, entry in entries.items():
        dtype, shape, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        if dtype not in ITEM_SIZES:
            raise ValueError(f"{name!r} has the unknown type {dtype}")
        if not isinstance(shape, list) or len(shape) > _MOST_AXES:
            raise ValueError(f"{name!r} has no shape")
        if not all(type(n) is int and 0 <= n < 1 << 62 for n in (*shape, start, end)):
            raise ValueError(f"{name!r} has a size that is not a whole number")
        if end - start != _num_bytes(dtype, shape):
            raise ValueError(f"{name!r} has another size than its shape")
        table[name] = Entry(dtype, tuple(shape), base + start, base + end)
    table = dict(sorted(table.items(), key=lambda item: (item[1].start, item[1].end)))
    position = base
    for name, found in table.items():
        if found.start != position:
            raise ValueError(f"{name!r} does not follow the tensor before it")
        position = found.end
    if position != num_bytes:
        raise ValueError(f"it has {num_bytes:,} bytes; its header describes {position:,}")
    return table


def _ordered(
    arrays: Mapping[str, tuple[str, Sequence[int], T]],
) -> list[tuple[str, tuple[str, Sequence[int], T]]]:
    """Return tensors in the order of the file.

    Larger numbers first: each tensor then begins at a multiple of the size of its numbers. And of
    those, tensors first that leave the next one at a multiple of ALIGNMENT.
    """
    return sorted(
        arrays.items(),
        key=lambda item: (-ITEM_SIZES[item[1][0]], _num_bytes(*item[1][:2]) % ALIGNMENT != 0),
    )


def _num_blocks(sizes: Mapping[str, int]) -> int:
    return sum(-(-size // BLOCK_SIZE) for size in sizes.values())


def _num_bytes(dtype: str, shape: Sequence[int]) -> int:
    return math.prod(shape) * ITEM_SIZES[dtype]


def _bytes(part: Any, dtype: str) -> Any:
    if isinstance(part, memoryview):
        return part
    return np.ascontiguousarray(part, NUMPY_TYPES[dtype]).reshape(-1).view(np.uint8).data


def _block_sum(block: memoryview) -> bytes:
    return zlib.crc32(block).to_bytes(4, "little")


def _chunk_sum(chunk: memoryview) -> bytes:
    """Return the CRC-32 of sums: sum i is of the words i, i + 1,021, i + 2,042 and so on.

    This takes 7 ms for 100 MB, where a CRC-32 of all bytes takes 35. A changed bit changes a sum.
    Pages that change places change sums too, since 1,021 is prime.
    """
    words = np.frombuffer(chunk, "<u8", len(chunk) // 8)
    num_words = len(words) // _NUM_SUMS * _NUM_SUMS
    sums = np.add.reduce(words[:num_words].reshape(-1, _NUM_SUMS), axis=0)
    return zlib.crc32(chunk[8 * num_words :], zlib.crc32(sums.data)).to_bytes(4, "little")


def _all_chunk_sums(data: NDArray[Any]) -> bytes:
    view = data.reshape(-1).view(np.uint8).data
    return b"".join(_chunk_sum(view[at : at + _CHUNK]) for at in range(0, len(view), _CHUNK))


class _Sums:
    """The checksums of pieces of one size, over parts of any size, computed in threads."""

    def __init__(
        self,
        pool: ThreadPoolExecutor,
        size: int = _CHUNK,
        checksum: Callable[[memoryview], bytes] = _chunk_sum,
    ) -> None:
        self._pool, self._size, self._checksum = pool, size, checksum
        self._sums = bytearray()
        self._begun = bytearray()
        """The beginning of a piece that is not complete."""
        self._waiting: list[Future[bytes]] = []

    def add(self, data: memoryview) -> None:
        """Begin to sum a part, which must not change before `wait`."""
        position = 0
        if self._begun:
            position = min(self._size - len(self._begun), len(data))
            self._begun += data[:position]
            if len(self._begun) < self._size:
                return
            self._submit(memoryview(self._begun))
            self._begun = bytearray()
        end = len(data) - (len(data) - position) % self._size
        share = self._size * max(1, _SUMMED_AT_ONCE // self._size)
        for start in range(position, end, share):
            self._submit(data[start : min(start + share, end)])
        self._begun += data[end:]

    def wait(self) -> None:
        """Wait for the parts that were added."""
        for found in self._waiting:
            self._sums += found.result()
        self._waiting.clear()

    def finished(self) -> bytes:
        if self._begun:
            self._submit(memoryview(self._begun))
        self.wait()
        return bytes(self._sums)

    def _submit(self, pieces: memoryview) -> None:
        self._waiting.append(self._pool.submit(self._each, pieces))

    def _each(self, pieces: memoryview) -> bytes:
        starts = range(0, len(pieces), self._size)
        return b"".join(self._checksum(pieces[i : i + self._size]) for i in starts)


def _encoded(
    header: Mapping[str, Any],
    shapes: Mapping[str, tuple[str, list[int]]],
    checksums: Mapping[str, int],
) -> bytes:
    """Return what stands before the tensors; its length does not depend on the checksums."""
    sums = {name: f"{checksum:08x}" for name, checksum in checksums.items()}
    about = json.dumps({**header, "checksums": sums})
    table: dict[str, Any] = {"__metadata__": {"check": _ZERO, "elman": about}}
    offset = 0
    for name, (dtype, shape) in shapes.items():
        end = offset + _num_bytes(dtype, shape)
        table[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    raw = json.dumps(table, separators=(",", ":")).encode()
    # Align the tensors, so that short rows do not straddle two cache lines.
    raw += b" " * (-(8 + len(raw)) % ALIGNMENT)
    return len(raw).to_bytes(8, "little") + _with_check(raw)


def _with_check(raw: bytes) -> bytes:
    """Set the check of a header."""
    place = len(_BEGIN)
    zeroed = _BEGIN + _ZERO.encode() + raw[place + len(_ZERO) :]
    return _BEGIN + f"{zlib.crc32(zeroed):08x}".encode() + zeroed[place + len(_ZERO) :]
