"""Memory for large float32 arrays on a CPU that is used again from one training step to the next.

What is large the C library hands back to the system as soon as it is free, and the next step pays
for each of its pages again: up to a quarter of a layer's time. `room` gives a tensor whose memory
returns here once nothing refers to it any more, wherever it has been passed on to. `release` hands
back to the system what is unused, as the end of a training run does.
"""

from __future__ import annotations

import os
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

SMALLEST_BYTES = 1 << 20
"""Less than this the C library keeps by itself."""


def _limit() -> int:
    try:
        return min(1 << 30, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 16)
    except (AttributeError, ValueError, OSError):  # the system does not tell
        return 1 << 28


KEPT_BYTES = _limit()
"""How much is kept while nobody uses it, a sixteenth of the machine's memory at most; what was used
longest ago goes first."""

_kept: dict[int, Any] = {}
"""Blocks that nobody uses, by their identity. Any thread may let go of a tensor at any moment, even
in the middle of this code, so there is no lock: each line leaves the table whole."""


class _Loan(np.ndarray[Any, Any]):
    """A block of memory in use, which is kept when the last tensor over it has gone."""

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
    """A float32 tensor of this shape with anything in it."""
    size = prod(shape)
    if 4 * size < SMALLEST_BYTES:
        return torch.empty(shape, dtype=torch.float32, device="cpu")
    block = _block(size)
    loan = block.view(_Loan)
    loan.block = block
    return torch.from_numpy(loan)[:size].view(shape)


def release() -> None:
    """Hand what nobody uses back to the system."""
    _kept.clear()


def _block(size: int) -> Any:
    """The smallest kept block that will do without wasting half of it, or a new one."""
    for block in sorted(_kept.values(), key=len):
        if size <= len(block) <= 2 * size and _kept.pop(id(block), None) is not None:
            return block
    return np.empty(size, np.float32)
