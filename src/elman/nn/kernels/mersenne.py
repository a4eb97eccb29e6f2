"""The first numbers of many Mersenne Twisters (Matsumoto and Nishimura, 1998), seeded as in Python.

`LANES` generators are seeded side by side in vector registers. The first 113 numbers need only the
seeded state, of which each is made by one twist and one tempering.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from elman.nn.kernels.loops import Array, compiled

SIZE, MIDDLE, LANES = 624, 397, 16
AT_ONCE = (SIZE - MIDDLE) // 2
"""Numbers per generator: two words each, before the first twisted word would be read."""


def first_numbers(seeds: Array, number: int) -> Array:
    """(B, N) what `random.Random(seed).random()` returns first, for seeds of 64 bits."""
    assert number <= AT_ONCE
    found: Array = _numbers(seeds, _start(), number)
    return found


@cache
def _start() -> Array:
    """The state from which seeding begins."""
    words = [19650218]
    for i in range(1, SIZE):
        words.append((1812433253 * (words[-1] ^ (words[-1] >> 30)) + i) & 0xFFFFFFFF)
    return np.array(words, np.uint32)


@compiled
def _numbers(seeds: Array, start: Array, number: int) -> Array:
    count = len(seeds)
    numbers = np.empty((count, number))
    state = np.empty((SIZE, LANES), np.uint32)
    even, odd = np.empty(LANES, np.uint32), np.empty(LANES, np.uint32)
    words = np.empty((2, LANES), np.uint32)
    for first in range(0, count, LANES):
        for lane in range(LANES):
            seed = seeds[min(first + lane, count - 1)]
            low, high = np.uint32(seed & np.uint64(0xFFFFFFFF)), np.uint32(seed >> np.uint64(32))
            # A key of two words is added by turns, each with its number; a key of one, always.
            even[lane] = low
            odd[lane] = np.uint32(high + np.uint32(1)) if high else low
            for i in range(SIZE):
                state[i, lane] = start[i]
        i = 1
        for k in range(SIZE):
            added = odd if k % 2 else even
            for lane in range(LANES):
                before = state[i - 1, lane]
                mixed = np.uint32((before ^ (before >> np.uint32(30))) * np.uint32(1664525))
                state[i, lane] = np.uint32((state[i, lane] ^ mixed) + added[lane])
            i += 1
            if i == SIZE:
                state[0] = state[SIZE - 1]
                i = 1
        for _ in range(SIZE - 1):
            for lane in range(LANES):
                before = state[i - 1, lane]
                mixed = np.uint32((before ^ (before >> np.uint32(30))) * np.uint32(1566083941))
                state[i, lane] = np.uint32((state[i, lane] ^ mixed) - np.uint32(i))
            i += 1
            if i == SIZE:
                state[0] = state[SIZE - 1]
                i = 1
        state[0] = np.uint32(0x80000000)
        for n in range(number):
            for half in range(2):
                k = 2 * n + half
                for lane in range(LANES):
                    upper = state[k, lane] & np.uint32(0x80000000)
                    y = upper | (state[k + 1, lane] & np.uint32(0x7FFFFFFF))
                    chosen = (y & np.uint32(1)) * np.uint32(0x9908B0DF)
                    y = np.uint32(state[k + MIDDLE, lane] ^ (y >> np.uint32(1)) ^ chosen)
                    y ^= y >> np.uint32(11)
                    y ^= (y << np.uint32(7)) & np.uint32(0x9D2C5680)
                    y ^= (y << np.uint32(15)) & np.uint32(0xEFC60000)
                    words[half, lane] = y ^ (np.uint32(y) >> np.uint32(18))
            for lane in range(min(LANES, count - first)):
                high, low = words[0, lane] >> np.uint32(5), words[1, lane] >> np.uint32(6)
                numbers[first + lane, n] = (high * 67108864.0 + low) / 9007199254740992.0
    return numbers
