"""The memory of this process: how much it takes, and how to give back what it does not need."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

_COMPILER = "libllvmlite"
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Numbers of glibc's options."""
_CONSUMED = 1 << 20
"""Elements that are given back at a time: two large pages of the system."""
_DONTNEED = 4
_LARGE = 1 << 22
"""Elements from which on the arrays of a computation take more memory than the compiler."""


def resident_bytes() -> int:
    """Return the resident memory of this process; 0 if the system does not report it."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def return_free_memory() -> None:
    """Give the allocator's free memory back to the system, where glibc would keep it."""
    gc.collect()
    trim()


def trim() -> None:
    """As `return_free_memory`, without a search for objects that could be freed."""
    if sys.platform == "linux":
        function = getattr(ctypes.CDLL(None), "malloc_trim", None)  # not in musl
        if function is not None:
            function(0)


def give_back(array: Any) -> None:
    """Give the whole pages of an array back to the system; they then read as zeros."""
    if (advise := madvise()) is not None:
        address = -(-array.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
        size = array.ctypes.data + array.nbytes - address
        if size >= mmap.PAGESIZE:
            advise(address, size - size % mmap.PAGESIZE, _DONTNEED)


class Consumed:
    """Gives an array back to the system piece by piece, while threads read it for the last time.

    What was given back reads as zeros.
    """

    def __init__(self, array: Any) -> None:
        self._array, self._left, self._lock = array, dict[int, int](), Lock()

    def add(self, first: int, end: int) -> None:
        """Note that these elements were read."""
        done = []
        with self._lock:
            for block in range(first // _CONSUMED, -(-end // _CONSUMED)):
                start, stop = block * _CONSUMED, min((block + 1) * _CONSUMED, len(self._array))
                left = self._left.get(block, stop - start) - (min(end, stop) - max(first, start))
                self._left[block] = left
                if left == 0:
                    done.append((start, stop))
        for start, stop in done:
            give_back(self._array[start:stop])


def keep_little_free() -> None:
    """Have the allocator return arrays of a megabyte or more to the system once they are freed.

    glibc raises this limit to 32 MB when it sees that such arrays come and go.
    """
    if sys.platform == "linux":
        option = getattr(ctypes.CDLL(None), "mallopt", None)
        if option is not None:
            option(_MMAP_THRESHOLD, 1 << 20)
            option(_TRIM_THRESHOLD, 1 << 20)
            option(_ARENA_MAX, 2)


def return_large_arrays() -> None:
    """Have the allocator return arrays of 4 MiB or more to the system once they are freed.

    glibc raises this limit to 32 MB: arrays of a few megabytes, freed in another order than they
    were made, then leave gaps.
    """
    if sys.platform == "linux":
        option = getattr(ctypes.CDLL(None), "mallopt", None)
        if option is not None:
            option(_MMAP_THRESHOLD, 4 << 20)


def release_compiler(beside: int = _LARGE) -> None:
    """Release the pages of numba's compiler, 75 MB that compiled loops do not use.

    They are read from its file again if they are used, as when another loop is loaded. `beside` is
    the size of the arrays in use: beside small ones they stay, as 75 MB do no harm there.
    """
    if beside >= _LARGE and (advise := madvise()) is not None:
        for start, end in _pages_of_compiler():
            advise(start, end - start, _DONTNEED)


@cache
def madvise() -> Callable[[int, int, int], int] | None:
    """Return Linux's `madvise`, called without the interpreter's lock; None elsewhere.

    It takes an address, a size and a number of advice, and returns 0, or -1 after an error.
    """
    if sys.platform != "linux":
        return None
    with suppress(OSError, AttributeError):
        function = ctypes.CDLL(None).madvise
        function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        found: Callable[[int, int, int], int] = function
        return found
    return None


@cache
def _pages_of_compiler() -> list[tuple[int, int]]:
    """Where its code and its constants are; not pages that have been written to."""
    found = []
    with suppress(OSError):
        place, is_its_own = "", False
        for line in Path("/proc/self/smaps").read_text().splitlines():
            first, *others = line.split(maxsplit=5)
            if not first.endswith(":"):
                place = first
                is_its_own = others[0] in ("r-xp", "r--p") and _COMPILER in line
            elif first == "Anonymous:" and is_its_own and others[0] == "0":
                start, end = place.split("-")
                found.append((int(start, 16), int(end, 16)))
    return found
