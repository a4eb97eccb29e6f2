"""Arrays in files (`base.tensor_files`), every byte of them verified before it changes a result.

A small file is read into memory and verified when it is opened. A larger one is mapped, and opens
in milliseconds whatever its size. Its blocks of 64 KiB are verified when they are first used:
compiled loops mark the blocks that they read, and the marked ones are verified before the results
are returned. Each call also verifies a few of the others, so that after a while nothing is left to
mark.

A mapped file must not change while it is in use: the process would read other numbers, or be killed
by the system if the file was cut short. So its size and time of change are compared before each
use. Writers replace whole files, which leaves the one that is mapped as it is.
"""

from __future__ import annotations

import mmap
import os
import time
import weakref
import zlib
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elman.base import tensor_files
from elman.base.documents import RESTORE
from elman.base.errors import ElmanError
from elman.base.files import explained
from elman.base.tensor_files import BLOCK_SHIFT, BLOCK_SIZE, NUMPY_TYPES, Entry, TensorFile

Marks = tuple[NDArray[np.uint8], ...]
SMALL = 64 << 20
"""Largest size in bytes of a file that is read into memory."""
_MORE = 0.25
"""Time to verify further blocks in, relative to that of the call."""


def write_arrays(
    path: Path,
    header: Mapping[str, Any],
    arrays: Mapping[str, tuple[str, Sequence[int], Iterable[NDArray[Any]]]],
) -> None:
    """Write arrays, each given as type (I32, F32, ...), shape and consecutive parts."""
    tensor_files.write(path, header, arrays, mapped=True)


@dataclass(frozen=True)
class Floats:
    """Where an array has float32 numbers: in the columns from `start` on, of `width`."""

    width: int = 1
    start: int = 0
    positive: bool = False
    """Whether they are weights, which are 0 or more, or logarithms, which may be -inf."""


class ArrayFile:
    """The arrays of an open file."""

    def __init__(
        self,
        path: Path,
        wanted: Mapping[str, str],
        number: int,
        floats: Mapping[str, Floats],
        *,
        small: int | None = None,
        absent: Collection[str] = (),
    ) -> None:
        """Open a file that has arrays of the wanted names and types, and format `number`.

        Files of up to `small` bytes, by default `SMALL`, are read into memory. Wanted arrays that
        the format does not have are `absent`, and empty.
        """
        self.path = path
        self.mapping: mmap.mmap | None = None
        """The mapped file; None if it was read into memory."""
        self._small = SMALL if small is None else small
        self.arrays: dict[str, NDArray[Any]] = {}
        self._floats = floats
        with tensor_files.open_tensors(path) as file:
            self.header = file.header
            if self.header.get("format") != number:
                raise ElmanError(
                    f"{path} has format {self.header.get('format')}; this version reads {number}",
                    "upgrade elman, or train the model again",
                )
            there = {name: dtype for name, dtype in wanted.items() if name not in absent}
            if {name: entry.dtype for name, entry in file.table.items()} != there:
                raise damaged(path, f"its arrays are not {', '.join(there)}")
            nothing = {name: Entry(wanted[name], (0,), 0, 0) for name in absent}
            file = replace(file, table=file.table | nothing)
            self._open(file, list(wanted))

    def _open(self, file: TensorFile, names: list[str]) -> None:
        with explained(self.path):
            status = os.fstat(file.handle.fileno())
            self._status = (status.st_size, status.st_mtime_ns)
            self._descriptor: int | None = None
            if status.st_size > self._small:
                # Copy-on-write: compiled loops take writable arrays.
                data = mmap.mmap(file.handle.fileno(), 0, access=mmap.ACCESS_COPY)
                self.mapping = data
                self._descriptor = os.dup(file.handle.fileno())
                weakref.finalize(self, os.close, self._descriptor)
            else:
                data = _memory(status.st_size)
                file.handle.seek(0)
                file.handle.readinto(data)
        if len(data) < max(entry.end for entry in file.table.values()):
            raise damaged(self.path, "it was cut short while it was read")
        self._names, self._starts = names, [0]
        self._bytes: list[NDArray[np.uint8]] = []
        self._checksums = [file.blocks.get(name) for name in names]
        for name in names:
            entry = file.table[name]
            part = np.frombuffer(data, np.uint8, entry.num_bytes, entry.start)
            self.arrays[name] = part.view(NUMPY_TYPES[entry.dtype]).reshape(entry.shape)
            self._bytes.append(part)
            # Room for one more: a search in an empty list at the end marks the place after it.
            self._starts.append(self._starts[-1] + (entry.num_bytes >> BLOCK_SHIFT) + 1)
        self._marks = np.zeros(self._starts[-1], np.uint8)
        self._verified = np.zeros(self._starts[-1], np.uint8)
        self._num_verified = 0  # in a row, from the first block on
        self.marks: Marks | None = tuple(self._marks[a:b] for a, b in pairwise(self._starts))
        """The marks of each array by block, in the order of `wanted`; None if all are verified."""
        if self._descriptor is None:
            self.verify()

    def run(self, loop: Callable[..., None], before: Sequence[Any], after: Sequence[Any]) -> None:
        """Call a loop with its marks between the other arguments, and verify what it read."""
        if self.marks is None:
            loop(*before, None, *after)
            return
        started = time.perf_counter()
        loop(*before, self.marks, *after)
        seconds = time.perf_counter() - started
        self._verify_marked()
        self._verify_more(time.perf_counter() + _MORE * seconds)

    def check_unchanged(self) -> None:
        """Raise an error if a mapped file was written to since it was opened.

        To be called before the arrays are read; it takes a few microseconds.
        """
        if self._descriptor is None:
            return
        try:
            status = os.fstat(self._descriptor)
            changed = self._status != (status.st_size, status.st_mtime_ns)
        except OSError:  # on a network file system the file may be gone
            changed = True
        if changed:
            raise ElmanError(
                f"{self.path} was changed or cut short while it was in use",
                "open it again; replace a model by renaming a new file, not by writing into it",
            )

    def release(self) -> None:
        """Release the pages of a mapped file, which count as memory of this process. They are taken
        from the system's cache again when they are used."""
        if self.mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
            self.mapping.madvise(mmap.MADV_DONTNEED)

    def verify(self, name: str | None = None, rows: slice = slice(None)) -> None:
        """Verify all blocks, or those of some rows of one array."""
        self.check_unchanged()
        if name is None:
            self._marks[:] = 1
        else:
            array, marks = self.arrays[name], self._starts[self._names.index(name)]
            first, end, _ = rows.indices(len(array))
            row_size = array.nbytes // max(1, len(array))
            blocks = (marks + (row * row_size >> BLOCK_SHIFT) for row in (first, end))
            self._marks[next(blocks) : next(blocks) + 1] = 1
        self._verify_marked()
        self._verify_more(0.0)

    def _verify_marked(self) -> None:
        for index in np.flatnonzero(self._marks > self._verified).tolist():
            self._verify_block(index)

    def _verify_more(self, until: float) -> None:
        """Verify blocks in order until a time; drop the marks when all are verified."""
        while (index := self._num_verified) < len(self._verified):
            if not self._verified[index]:
                if time.perf_counter() >= until:
                    return
                self._verify_block(index)
            self._num_verified = index + 1
        self.marks = None

    def _verify_block(self, index: int) -> None:
        which = bisect_right(self._starts, index) - 1
        name, block = self._names[which], index - self._starts[which]
        part = self._bytes[which][block << BLOCK_SHIFT :][:BLOCK_SIZE]
        checksums, floats = self._checksums[which], self._floats.get(name)
        if len(part) and checksums is not None and zlib.crc32(part.data) != checksums[block]:
            raise damaged(self.path, f"{name!r} was changed after it was written")
        if len(part) and floats is not None:
            # Column by column: NumPy takes twice as long for all at once.
            for column in part.view(np.float32).reshape(-1, floats.width).T[floats.start :]:
                if not column.max() < np.inf or (floats.positive and not column.min() >= 0):
                    raise damaged(self.path, f"{name!r} has numbers that are not finite")
        self._verified[index] = 1


def _memory(size: int) -> mmap.mmap:
    """Return memory, in large pages where the system has them."""
    data = mmap.mmap(-1, size)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            data.madvise(mmap.MADV_HUGEPAGE)
    return data


def damaged(path: Path, detail: str) -> ElmanError:
    return ElmanError(f"{path} is not an n-gram model, or is damaged: {detail}", RESTORE)
