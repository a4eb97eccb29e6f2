"""A file that several threads write at the same time, each at places of its own.

Linux lets one thread at a time write into a file: 13 threads write no faster than one, 3.5 GB/s
into /dev/shm. Pages of a mapped file they can fill at the same time. With few threads that takes
longer than writing, so `SharedFile` maps for many threads and large files alone.

Filling a mapped page of a full disk would kill the process. So pages are allocated before they are
filled, in a way that reports an error (MADV_POPULATE_WRITE, Linux 5.14); where that fails, the
bytes are written, which explains why.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elman.base.memory import madvise

LEAST_THREADS = 4
"""Threads from which on a file is mapped: filling its pages costs half as much again."""
LEAST_BYTES = 1 << 26
"""Size of files that are mapped."""
_WINDOW = 1 << 30
"""Bytes mapped at a time: every call to map or unmap stops the threads that fill pages."""
_DONTNEED, _POPULATE_WRITE = 4, 23
"""Advice for Linux's `madvise`; Python has no name for the second."""


class SharedFile:
    """A new file. Where nothing is written, it has zeros."""

    def __init__(self, path: Path, num_bytes: int, num_threads: int) -> None:
        """`num_bytes` is about the size that the file will have."""
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0)
        self._descriptor = os.open(path, flags, 0o666)
        self._windows: dict[int, NDArray[np.uint8]] = {}
        self._lock = Lock()
        self._end = 0
        self._advise = None
        if num_threads >= LEAST_THREADS and num_bytes >= LEAST_BYTES:
            self._advise = madvise()

    def __enter__(self) -> SharedFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._windows:
                self._windows.clear()
                os.ftruncate(self._descriptor, self._end)
        finally:
            os.close(self._descriptor)

    def put(self, place: int, data: Any) -> None:
        """Write bytes at a place, in any thread."""
        view = np.frombuffer(data, np.uint8)
        with self._lock:
            self._end = max(self._end, place + len(view))
        while len(view):
            number, offset = divmod(place, _WINDOW)
            part = view[: _WINDOW - offset]
            if not self._fill(number, offset, part):
                self._write(place, part)
            place, view = place + len(part), view[len(part) :]

    def _write(self, place: int, part: NDArray[np.uint8]) -> None:
        while len(part):
            if hasattr(os, "pwrite"):
                written = os.pwrite(self._descriptor, part.data, place)
            else:  # Windows
                with self._lock:
                    os.lseek(self._descriptor, place, os.SEEK_SET)
                    written = os.write(self._descriptor, part.data)
            place, part = place + written, part[written:]

    def _fill(self, number: int, offset: int, part: NDArray[np.uint8]) -> bool:
        """Copy bytes into mapped pages; return False if they must be written."""
        advise = self._advise
        if advise is None or (window := self._window(number)) is None:
            return False
        first = offset - offset % mmap.PAGESIZE
        address, size = window.ctypes.data + first, offset + len(part) - first
        if advise(address, size, _POPULATE_WRITE) != 0:  # a full disk, or an older Linux
            return False
        window[offset : offset + len(part)] = part
        # Else the file's pages would count as memory of this process. They stay in the cache.
        advise(address, size, _DONTNEED)
        return True

    def _window(self, number: int) -> NDArray[np.uint8] | None:
        with self._lock:
            if number not in self._windows:
                try:
                    size = (number + 1) * _WINDOW
                    if os.fstat(self._descriptor).st_size < size:
                        os.ftruncate(self._descriptor, size)
                    mapping = mmap.mmap(self._descriptor, _WINDOW, offset=number * _WINDOW)
                except OSError:  # a limit of sizes, or a file system that does not map
                    self._advise = None
                    return None
                self._windows[number] = np.frombuffer(mapping, np.uint8)
            return self._windows[number]
