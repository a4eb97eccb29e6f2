"""Arrays that live on disk while a model is made, where memory is limited.

A mapped file costs no memory that the system could not take back at any time, but it counts as this
process's own until it does. `Scratch` therefore gives pages back whenever the process has grown
past its limit; they come again from the file when they are next touched.
"""

from __future__ import annotations

import itertools
import mmap
import os
import shutil
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from elman.base.files import explain

_PAUSE = 0.1  # seconds between two looks at how much memory is in use


class Scratch:
    """A folder of arrays, deleted at the end; a context manager."""

    def __init__(self, parent: Path | None = None, limit: int | None = None) -> None:
        """`limit` is the resident memory in bytes from which on pages are given back."""
        try:
            self.folder = Path(tempfile.mkdtemp(prefix="elman-ngrams-", dir=parent))
        except OSError as error:
            raise explain(error, parent or tempfile.gettempdir()) from error
        self._limit = limit
        self._numbers = itertools.count()
        self._mappings: list[mmap.mmap] = []
        self._done = threading.Event()
        self._keeper = threading.Thread(target=self._keep, daemon=True)

    def __enter__(self) -> Scratch:
        self._keeper.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._keeper.join()
        self._mappings.clear()
        shutil.rmtree(self.folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise explain(error, self.folder) from error

    def empty(self, size: int, dtype: DTypeLike = np.int32) -> NDArray[Any]:
        """An array of so many zeros on disk."""
        path, num_bytes = self.path(), size * np.dtype(dtype).itemsize
        with path.open("wb") as file:
            if num_bytes and hasattr(os, "posix_fallocate"):
                # The room is taken now: on a full disk, writing to a mapped file ends the process.
                os.posix_fallocate(file.fileno(), 0, num_bytes)
            else:
                file.truncate(num_bytes)
        return self.open(path, dtype)

    def put(self, arrays: Sequence[NDArray[np.int32]]) -> list[NDArray[np.int32]]:
        """The same arrays on disk, in one file: the system lets a process open only so many."""
        path = self.path()
        with path.open("wb") as file:
            for array in arrays:
                file.write(np.ascontiguousarray(array).data)
        ends = np.cumsum([len(array) for array in arrays])
        return np.split(self.open(path), ends[:-1])

    def open(self, path: Path, dtype: DTypeLike = np.int32) -> NDArray[Any]:
        """A file as an array."""
        if not path.stat().st_size:
            return np.empty(0, dtype)
        with path.open("r+b") as file:
            mapping = mmap.mmap(file.fileno(), 0)
        self._mappings.append(mapping)
        return np.frombuffer(mapping, dtype)

    def path(self) -> Path:
        """A name for a new file."""
        return self.folder / f"{next(self._numbers)}.array"

    def relax(self) -> None:
        """Give the pages of all arrays back."""
        if hasattr(mmap, "MADV_DONTNEED"):
            for mapping in list(self._mappings):
                mapping.madvise(mmap.MADV_DONTNEED)

    def _keep(self) -> None:
        while not self._done.wait(_PAUSE):
            if self._limit is not None and resident_bytes() > self._limit:
                self.relax()


def resident_bytes() -> int:
    """The memory that this process has in use, 0 where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
