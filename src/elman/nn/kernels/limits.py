"""The sizes at which another kernel, or another variant of one, becomes faster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any


# Compared and hashed by identity: it is part of a cache key at every call.
@dataclass(frozen=True, kw_only=True, eq=False)
class KernelLimits:
    """The sizes at which another kernel, or another variant, becomes faster (measured)."""

    smallest_work: int = 100_000_000
    """Multiplications of an LSTM's forward pass below which torch's layer is as fast as the
    compiled loops. (torch has no fused GRU on a CPU.)"""
    fewest_steps: int = 2048
    """Steps times rows below which `smallest_work` is four times as large in float32: fewer steps
    share the cost of packing the matrices."""
    fewest_rows: int = 4
    """Rows of a batch that are worth a thread."""
    few_rows_per_part: int = 10
    """Rows per thread up to which reading an LSTM's recurrent matrix takes longer than multiplying
    by it: the threads then divide the units, so that each reads its part of the matrix. In float32;
    in bfloat16 `cpu_planner.py` decides."""
    timed_work: int = 100_000_000
    """Multiplications of an LSTM's forward pass from which ways to divide it, and torch's layer,
    are timed (`timing.py`) in training; in scoring, from ten times as many."""
    row_groups: int | None = None
    """Groups of rows in an LSTM's loop in bfloat16; the threads of a group divide the units. None
    for what a model of the time finds best (`cpu_planner.py`)."""
    large_bytes: int = 1 << 24
    """Bytes of a recurrent matrix above which the threads divide the units at any batch size.
    In float32, as above."""
    cache_bytes: int = 3 << 19
    """Bytes of W and U together up to which they stay in a core's cache from step to step. Products
    are then computed inside the time loop; else over all steps at once."""
    small_scan: int = 4096
    """Numbers in a step below which, on a CPU, a scan in two levels is faster than one by steps."""
    few_streams: int = 4
    """Rows up to which a decoding step goes through the weights row by row, in compiled code."""
    shared_bytes: int = 3 << 19
    """Bytes of weights, read in a decoding step, that are worth waking another thread for."""
    packed_bytes: int = 1 << 28
    """Bytes of the largest model whose weights are packed for decoding many rows (two copies)."""
    step_work: int = 1 << 20
    """Multiplications of a decoding step of many rows that are worth waking a thread for."""
    table_ratio: int = 4
    """In decoding, W x + b of every word may take this many times the memory of W."""
    num_threads: int | None = None
    """Threads to use; None for as many as torch has."""


_DEFAULT_LIMITS = KernelLimits()
_limits: ContextVar[KernelLimits] = ContextVar("kernel_limits", default=_DEFAULT_LIMITS)


@contextmanager
def kernel_limits(**changes: Any) -> Iterator[KernelLimits]:
    """Plan with other limits inside a `with` block, e.g. `kernel_limits(smallest_work=0)`."""
    token = _limits.set(replace(_limits.get(), **changes))
    try:
        yield _limits.get()
    finally:
        _limits.reset(token)


def current_limits() -> KernelLimits:
    """The limits of the innermost `kernel_limits` block, or the measured ones."""
    return _limits.get()
