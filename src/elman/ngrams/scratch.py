"""Temporary arrays on disk, for building a model in limited memory.

The system can reclaim the pages of a mapped file at any time, but they count as resident memory of
the process until it does. So `Scratch` releases pages whenever the process exceeds its limit; they
are read again from the file when next used.
"""

from __future__ import annotations

import itertools
import mmap
import os
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from elman.base.errors import UsageError
from elman.base.files import explain, explained, owned_folder
from elman.ngrams.trie import Room

SMALLEST_MEMORY = 64 << 20
"""Lower limit of the memory for counting, besides what Python itself uses."""

_PAUSE = 0.1  # seconds between two checks of the resident memory
_ZEROS = 1 << 20  # bytes written at a time


class Scratch(Room):
    """A folder of arrays, deleted on leaving the context manager."""

    piece = 1 << 14

    def __init__(self, parent: Path | None = None, limit: int | None = None) -> None:
        """Release pages while resident memory is above `limit` bytes."""
        self._owned = owned_folder(parent)
        self._limit = limit
        self._numbers = itertools.count()
        self._mappings: list[mmap.mmap] = []
        self._done = threading.Event()
        self._keeper = threading.Thread(target=self._keep, daemon=True)

    def __enter__(self) -> Scratch:
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
        return self.open(path, dtype)

    def open(self, path: Path, dtype: DTypeLike = np.int32) -> NDArray[Any]:
        """Map a file as an array."""
        if not path.stat().st_size:
            return np.empty(0, dtype)
        with path.open("r+b") as file:
            mapping = mmap.mmap(file.fileno(), 0)
        self._mappings.append(mapping)
        return np.frombuffer(mapping, dtype)

    def path(self) -> Path:
        return self.folder / f"{next(self._numbers)}.array"

    def release(self) -> None:
        """Release the pages of all arrays."""
        if hasattr(mmap, "MADV_DONTNEED"):
            for mapping in list(self._mappings):
                mapping.madvise(mmap.MADV_DONTNEED)

    def relieve(self) -> None:
        """Release the pages if the process exceeds its limit."""
        if self._limit is not None and resident_bytes() > self._limit:
            self.release()

    def _keep(self) -> None:
        while not self._done.wait(_PAUSE):
            self.relieve()


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
            f"{memory:,} bytes of memory are too few to count in",
            f"give {SMALLEST_MEMORY >> 20}M or more; M and G are the units",
        )


def resident_bytes() -> int:
    """Return the resident memory of this process; 0 if the system does not report it."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
