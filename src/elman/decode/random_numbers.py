"""The random numbers of many streams at once: those that `random.Random(seed)` gives for each.

Seeding the generator takes 6 microseconds, as long as ten tokens of one stream among thousands. The
numbers of many streams are computed side by side by a compiled loop; only streams that draw more
than `AT_ONCE` get a generator.

B streams, N numbers, K steps.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from elman.nn.kernels.loops import numba
from elman.nn.kernels.mersenne import AT_ONCE, first_numbers

FEWEST = 16
"""The number of streams from which calling the loop is worth it."""
NUMBERS = 64
"""Numbers of a stream that are kept ready."""
assert NUMBERS <= AT_ONCE


class Generator:
    """Random numbers in [0, 1) of one stream, which can be taken back."""

    def __init__(self, seed: int | None) -> None:
        # Without a seed, `random.Random` would read 2,500 bytes from the system.
        self.seed = random.getrandbits(64) if seed is None else abs(seed)
        self.num_drawn = 0
        """Numbers that were given out, except those drawn from `source` directly."""
        self._generator: random.Random | None = None

    @property
    def source(self) -> random.Random:
        """What makes the next numbers."""
        if self._generator is None:
            self._generator = random.Random(self.seed)
            for _ in range(self.num_drawn):
                self._generator.random()
        return self._generator

    def next(self, number: int) -> list[float]:
        draw = self.source.random
        self.num_drawn += number
        return [draw() for _ in range(number)]

    def take_back(self, number: int) -> None:
        """Give the last numbers out again."""
        self.num_drawn -= number
        self._generator = None


def next_numbers(generators: Sequence[Generator], number: int) -> NDArray[np.float64]:
    """(B, N) the next numbers of each."""
    if (
        numba is not None
        and len(generators) >= FEWEST
        and number <= AT_ONCE
        and all(one.num_drawn == 0 and one.seed < 1 << 64 for one in generators)
    ):
        for one in generators:
            one.take_back(-number)
        seeds = np.array([one.seed for one in generators], np.uint64)
        first_BN: NDArray[np.float64] = first_numbers(seeds, number)
        return first_BN
    return np.array([one.next(number) for one in generators]).reshape(-1, number)


class Numbers:
    """Numbers in (0, 1] of the streams of a batch."""

    def __init__(self) -> None:
        self._generators: list[Generator] = []
        self._ready_BN = np.empty((0, NUMBERS))
        self._used_B = np.empty(0, np.int64)

    def add(self, generators: Sequence[Generator]) -> None:
        """Add rows."""
        fresh = len(generators)
        ready_BN = np.concatenate([self._ready_BN, np.empty((fresh, NUMBERS))])
        used_B = np.concatenate([self._used_B, np.full(fresh, NUMBERS)])
        self._ready_BN, self._used_B = ready_BN, used_B
        self._generators += generators

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all other rows."""
        self._generators = [self._generators[row] for row in rows]
        self._ready_BN, self._used_B = self._ready_BN[list(rows)], self._used_B[list(rows)]

    def take_back(self, row: int) -> None:
        """Let a row's generator give out again what it did not use; the row is dropped next."""
        self._generators[row].take_back(NUMBERS - int(self._used_B[row]))

    def coming(self, num_steps: int) -> NDArray[np.float64]:
        """(K, B) numbers for the next steps."""
        short_B = self._used_B + num_steps > NUMBERS
        for used in np.unique(self._used_B[short_B]).tolist():
            rows = np.flatnonzero(short_B & (self._used_B == used))
            self._ready_BN[rows, : NUMBERS - used] = self._ready_BN[rows, used:]
            fresh = next_numbers([self._generators[row] for row in rows.tolist()], used)
            self._ready_BN[rows, NUMBERS - used :] = 1.0 - fresh
            self._used_B[rows] = 0
        places_KB = self._used_B + np.arange(num_steps)[:, None]
        coming_KB: NDArray[np.float64] = self._ready_BN[np.arange(len(self._used_B)), places_KB]
        return coming_KB

    def use(self, number_B: NDArray[np.int64]) -> None:
        """Note how many were used in each row."""
        self._used_B += number_B
