"""The memory of this process: how much it takes, and how to give back what it does not need."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

_COMPILER = "libllvmlite"
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Numbers of glibc's options."""


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


def release_compiler() -> None:
    """Release the pages of numba's compiler, 60 MB of code that compiled loops do not use.

    They are read from its file again if they are used, as when another loop is loaded.
    """
    with suppress(OSError, AttributeError):
        for start, end in _code_of_compiler():
            _advise()(start, end - start, mmap.MADV_DONTNEED)


@cache
def _advise() -> Any:
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return advise


@cache
def _code_of_compiler() -> list[tuple[int, int]]:
    """Where the code is; not other pages, which may have been written to."""
    found = []
    with suppress(OSError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            place, access, *_, name = line.split(maxsplit=5)
            if access == "r-xp" and _COMPILER in name:
                start, end = place.split("-")
                found.append((int(start, 16), int(end, 16)))
    return found
