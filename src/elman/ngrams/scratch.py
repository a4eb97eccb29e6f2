"""Temporary arrays on disk, for building a model in limited memory.

The system can reclaim the pages of a mapped file at any time, but they count as resident memory of
the process until it does. So `Scratch` releases pages when the process comes close to its limit;
they are read again from the file when next used. Work is done in small pieces, with a look at the
memory after each: a piece that reads here and there can take many pages. What is not in mapped
files has to fit into `budget`.
"""

from __future__ import annotations

import itertools
import mmap
import os
import re
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from elman.base.errors import ElmanError, UsageError
from elman.base.files import explain, explained, owned_folder
from elman.base.memory import (
    keep_little_free,
    release_compiler,
    resident_bytes,
    trim,
)
from elman.ngrams.trie import Room

SMALLEST_MEMORY = 256 << 20
"""Lower limit of the memory of the process: Python and the compiled loops take most of this."""
LEAST_ROOM = 20 << 20
"""Lower limit of what is left to count in."""
_HEADROOM = 1 / 12
"""The part of the limit that is kept free."""

_PAUSE = 0.02  # seconds between two checks of the resident memory
_ZEROS = 1 << 20  # bytes written at a time


class Scratch(Room):
    """A folder of arrays, deleted on leaving the context manager."""

    piece = 1 << 11

    def __init__(self, parent: Path | None = None, limit: int | None = None) -> None:
        """Keep resident memory below `limit` bytes."""
        self._owned = owned_folder(parent)
        self.limit = limit
        self._threshold = int((limit or 0) * (1 - _HEADROOM))
        self._numbers = itertools.count()
        self._mappings: list[weakref.ref[mmap.mmap]] = []
        self._done = threading.Event()
        self._keeper = threading.Thread(target=self._keep, daemon=True)

    def __enter__(self) -> Scratch:
        if self.limit is not None:
            keep_little_free()
        with explained("the temporary directory"):
            self.folder = self._owned.__enter__()
        self._keeper.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._done.set()
        self._keeper.join()
        self._mappings.clear()
        self._owned.__exit__(None, None, None)
        if isinstance(error, OSError):
            raise explain(error, self.folder) from error

    def empty(self, size: int, dtype: DTypeLike = np.int32) -> NDArray[Any]:
        """Return an array of zeros on disk."""
        path, num_bytes = self.path(), size * np.dtype(dtype).itemsize
        with path.open("wb") as file:
            # Allocate now: on a full disk, writing to a mapped file crashes the process.
            if num_bytes and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, num_bytes)
            else:
                for start in range(0, num_bytes, _ZEROS):
                    file.write(bytes(min(_ZEROS, num_bytes - start)))
        return self._map(path, dtype, remove=True)

    def open(self, path: Path, dtype: DTypeLike = np.int32) -> NDArray[Any]:
        """Map a file as an array."""
        return self._map(path, dtype)

    def _map(self, path: Path, dtype: DTypeLike, *, remove: bool = False) -> NDArray[Any]:
        """`remove` frees the disk as soon as nobody uses the array."""
        if not path.stat().st_size:
            return np.empty(0, dtype)
        with path.open("r+b") as file:
            mapping = mmap.mmap(file.fileno(), 0)
        self.watch(mapping)
        if remove:
            weakref.finalize(mapping, _remove, path)
        return np.frombuffer(mapping, dtype)

    def path(self) -> Path:
        return self.folder / f"{next(self._numbers)}.array"

    def release(self) -> None:
        """Release the pages of all arrays."""
        if hasattr(mmap, "MADV_DONTNEED"):
            for reference in list(self._mappings):
                if (mapping := reference()) is not None:
                    mapping.madvise(mmap.MADV_DONTNEED)

    def watch(self, mapping: mmap.mmap) -> None:
        """Release the pages of another mapping too, which nobody writes to."""
        self._mappings.append(weakref.ref(mapping))

    def relieve(self) -> None:
        """Release the pages if the process comes close to its limit."""
        if self.limit is not None and resident_bytes() > self._threshold:
            self.release()
            release_compiler()
            # Do not release again and again what comes back at once, if the rest is near the limit.
            left = max(0, self.limit - resident_bytes())
            self._threshold = max(int(self.limit * (1 - _HEADROOM)), self.limit - left // 2)

    def budget(self, what: str) -> int:
        """Return how many bytes are left for arrays in memory, after `what` (in words)."""
        assert self.limit is not None
        self.release()
        trim()
        release_compiler()
        taken = resident_bytes()
        left = int(self.limit * (1 - _HEADROOM)) - taken
        if left < LEAST_ROOM:
            least = int((taken + LEAST_ROOM) / (1 - _HEADROOM)) >> 20
            raise ElmanError(
                f"{what} take {taken >> 20} MiB: {self.limit >> 20} MiB of memory are too few",
                f"give --memory {least + 16}M or more",
            )
        return left if left > 0 else self.limit  # tests lower LEAST_ROOM

    def _keep(self) -> None:
        while not self._done.wait(_PAUSE):
            self.relieve()


def _remove(path: Path) -> None:
    with suppress(OSError):  # it is removed with its folder then
        path.unlink()


def memory_size(text: str) -> int:
    """Parse an amount of memory such as 2G, 500M or 1.5GiB; return bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if found is None:
        raise UsageError(f"'{text}' is not an amount of memory", "write it as 500M or 2G")
    power = " KMGT".index(found[2].upper() or " ")
    return int(float(found[1]) * 1024**power)


def check_memory(memory: int) -> None:
    """Check that there is enough memory to work in, whatever the text."""
    if memory < SMALLEST_MEMORY:
        raise UsageError(
            f"{memory:,} bytes of memory are too few: Python itself takes 200 MB",
            f"give {SMALLEST_MEMORY >> 20}M or more; M and G are the units",
        )
