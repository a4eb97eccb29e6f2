"""Divide a recurrent layer over a GPU, for `persistent.py`: arithmetic on sizes, no tensors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

LARGEST_SHARE = 0.65
"""The part of a multiprocessor's shared memory that the recurrent matrix may take on chips other
than the H200, which were not tested: it leaves room for what compilers add."""


@dataclass(frozen=True)
class Chip:
    """The sizes of a GPU that matter here."""

    multiprocessors: int
    shared_memory: int
    """Bytes that a program can have."""
    capability: tuple[int, int] = (9, 0)
    """What its instructions are, CUDA's "compute capability"."""


H200 = Chip(132, 227 * 1024)

TESTED_SHARE = 0.85
"""The same on an H200, or an H100 of as many multiprocessors, in 16 bits: up to 1,536 units."""

LARGEST_WHOLE = 512
"""Units above which a gate's gradient is cut in two in the backward pass."""


@dataclass(frozen=True, kw_only=True)
class TileWay:
    """How the programs of one pass, forward or backward, multiply."""

    warps: int
    """Warps per program."""
    tile: int
    """The longest piece of a row that is read at a time."""
    swap: bool
    """Whether the matrix is the left factor of products."""
    pieces: int = 1
    """Pieces of a gate's gradient that different programs multiply, in the backward pass."""


# Compared and hashed by identity: it is part of a cache key at every call.
@dataclass(frozen=True, kw_only=True, eq=False)
class Tiling:
    """How a layer is divided over the device."""

    units: int
    """Hidden units per program."""
    rows: int
    """Rows of the batch per program."""
    groups: int
    """Groups of programs, each with rows of its own."""
    forward: TileWay
    backward: TileWay


def padded_size(size: int) -> int:
    """The next 2^a, or 2^a + 2^b: what a few tiles cover."""
    largest = max(16, 1 << (size - 1).bit_length())
    half = largest // 2
    # Tensor cores take 16 numbers at least, and half of the units where a gate is cut in two.
    least = 4 if half < LARGEST_WHOLE else 5
    both = [half + (1 << b) for b in range(least, half.bit_length() - 1) if half >= 32]
    return min(n for n in [largest, *both] if n >= size)


@lru_cache(256)
def tile(
    hidden_size: int, batch_size: int, itemsize: int, directions: int, chip: Chip
) -> Tiling | None:
    """Divide a layer of padded size over a GPU; None where it does not fit.

    The choices are those that were fastest on an H200 (`docs/log`).
    """
    # float32 is multiplied as three products of shorter numbers, which need the matrix twice.
    units, copies = (16, 1) if itemsize == 2 else (8, 2)
    pieces = 2 if hidden_size > LARGEST_WHOLE else 1
    slices = _multiple(hidden_size, 4 * pieces * units) // units * directions
    matrix_bytes = hidden_size * 4 * units * itemsize * copies
    share = TESTED_SHARE if chip == H200 and itemsize == 2 else LARGEST_SHARE
    if slices > chip.multiprocessors or matrix_bytes > share * chip.shared_memory:
        return None
    groups = chip.multiprocessors // slices
    rows = next((n for n in (16, 32, 64, 128) if n * groups >= batch_size), None)
    # With more rows, the backward pass in float32 runs out of registers: a step of 512 units and 64
    # rows took 392 us on an H200, torch's 72.
    if rows is None or (rows > 16 and itemsize == 4):
        return None
    if rows == 128:
        forward = TileWay(warps=8, tile=128, swap=False)
        backward = TileWay(warps=8, tile=64, swap=True, pieces=pieces)
    else:
        swap = units == 16
        longest = {16: 512, 32: 512, 64: 128}[rows]
        forward = TileWay(warps=4, tile=256 if hidden_size <= 512 else longest, swap=swap)
        backward = TileWay(warps=4 * pieces, tile=256, swap=swap, pieces=pieces)
    return Tiling(
        units=units,
        rows=rows,
        groups=-(-batch_size // rows),
        forward=forward,
        backward=backward,
    )


def grids(
    tiling: Tiling, hidden_size: int, num_gates: int, directions: int
) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """The programs of both passes: slices of units, groups of rows, directions."""
    slices = (
        _multiple(hidden_size, programs_per_slice(tiling, num_gates) * tiling.units) // tiling.units
    )
    others = (tiling.groups, directions)
    return (hidden_size // tiling.units, *others), (slices, *others)


def programs_per_slice(tiling: Tiling, num_gates: int) -> int:
    """How many programs share a slice of units in the backward pass."""
    return (1 if num_gates == 1 else 4) * tiling.backward.pieces


def _multiple(size: int, step: int) -> int:
    return -(-size // step) * step
