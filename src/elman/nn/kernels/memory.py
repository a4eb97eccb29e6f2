"""Reuse the memory of large arrays on a CPU from one training step to the next.

The C library returns large arrays to the system as soon as they are free, and the next step pays
for each of their pages again: up to a quarter of a layer's time. `room` gives a tensor whose memory
returns to a cache here once nothing refers to it. `keep_freed` asks the C library to keep what
torch itself frees, such as the gradients of embeddings, for the length of a training run; `release`
at its end returns all to the system.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

SMALLEST_BYTES = 1 << 20
"""The C library itself keeps smaller arrays."""


def _limit() -> int:
    try:
        return min(1 << 30, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 16)
    except (AttributeError, ValueError, OSError):  # this system does not say
        return 1 << 28


KEPT_BYTES = _limit()
"""Bytes kept while unused, at most a sixteenth of the machine's memory; the oldest go first."""

_kept: dict[int, Any] = {}
"""Unused blocks by their identity. Any thread may free a tensor at any moment, even in the middle
of this code, so there is no lock: each line leaves the table consistent."""


class _Loan(np.ndarray[Any, Any]):
    """A block in use, which is kept when the last tensor over it is freed."""

    block: Any = None

    def __del__(self, kept: dict[int, Any] = _kept) -> None:
        if self.block is not None:
            kept[id(self.block)] = self.block
            blocks = list(kept.values())
            excess = sum(block.nbytes for block in blocks) - KEPT_BYTES
            for block in blocks:
                if excess > 0:
                    kept.pop(id(block), None)
                    excess -= block.nbytes


def room(*shape: int) -> Tensor:
    """An uninitialised float32 tensor."""
    size = prod(shape)
    if 4 * size < SMALLEST_BYTES:
        return torch.empty(shape, dtype=torch.float32, device="cpu")
    block = _block(size)
    loan = block.view(_Loan)
    loan.block = block
    return torch.from_numpy(loan)[:size].view(shape)


def half_room(*shape: int) -> Tensor:
    """An uninitialised bfloat16 tensor."""
    size = prod(shape)
    return room(-(-size // 2)).view(torch.bfloat16)[:size].view(shape)


def keep_freed() -> None:
    """Let the C library keep freed memory instead of returning it to the system: with 10,000 words
    of 512 numbers, half of an update's time went into clearing the same pages again."""
    _tell_the_c_library({M_MMAP_MAX: 0, M_TRIM_THRESHOLD: 2**31 - 1})


def release() -> None:
    """Return unused memory to the system, and let the C library do so as usual."""
    _kept.clear()
    usual = {M_MMAP_MAX: 1 << 16, M_MMAP_THRESHOLD: 1 << 25, M_TRIM_THRESHOLD: 1 << 26}
    _tell_the_c_library(usual, trim=True)


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4
"""Options of glibc's `mallopt`. Once one is set, glibc no longer raises its thresholds by itself,
so `release` sets what they would rise to: 32 and 64 MiB."""


def _tell_the_c_library(options: dict[int, int], *, trim: bool = False) -> None:
    with suppress(OSError, AttributeError):  # another system's
        library = ctypes.CDLL(None)
        for option, value in options.items():
            library.mallopt(option, value)
        if trim:
            library.malloc_trim(0)


def _block(size: int) -> Any:
    """The smallest kept block of up to twice the size, or a new one."""
    for block in sorted(_kept.values(), key=len):
        if size <= len(block) <= 2 * size and _kept.pop(id(block), None) is not None:
            return block
    return np.empty(size, np.float32)
