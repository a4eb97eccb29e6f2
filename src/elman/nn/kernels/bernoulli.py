"""Dropout masks from torch's random numbers, drawn side by side in vector registers.

On processors for which torch does not draw them by MKL, `Tensor.bernoulli_` makes a number after
the other with the Mersenne Twister (Matsumoto and Nishimura, 1998) of its default generator. The
loop here makes the same numbers from the same state, and leaves the generator in the state that
torch would.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil

import numpy as np
import torch
from torch import Tensor

from elman.nn.kernels import mkl
from elman.nn.kernels.loops import F32, Array, compiled
from elman.nn.kernels.team import Floats1, Int64s, pooled_loop, view

FEWEST_NUMBERS = 2048
"""From here on the loop gains more than reading and writing the generator's state takes."""
SIZE, MIDDLE = 624, 397
LEFT, NEXT, WORDS = 1, 2, 3
"""Where a generator's state, as 64-bit numbers, has its words before the next twist (in the lower
half), the place of the next word, and the words of 32 bits, one in each number."""
BITS = 53
"""Of the random numbers that are compared with a probability."""


def serves(like: Tensor, num_numbers: int) -> bool:
    """Whether `mask` can fill a tensor of so many numbers: float32 on a CPU, and enough."""
    return (
        num_numbers >= FEWEST_NUMBERS
        and like.device.type == "cpu"
        and like.dtype == torch.float32
        and _agrees()
    )


def mask(shape: tuple[int, ...], keep: float) -> Tensor:
    """1 / `keep` with that probability, else 0."""
    return _drawn(torch.default_generator, torch.empty(shape, dtype=torch.float32), keep)


def _drawn(generator: torch.Generator, found: Tensor, keep: float) -> Tensor:
    state = generator.get_state()
    size = found.numel()
    _draw(
        num_rows=1,
        num_parts=1,
        state=state.view(torch.int64),
        words=torch.empty(size, dtype=torch.int64),
        kept=_bits_of_inverse(keep),
        limit=ceil(keep * 2**BITS),
        found=found.view(-1),
    )
    generator.set_state(state)
    return found


@lru_cache(None)
def _agrees() -> bool:
    """Whether this build of torch, on this processor, draws what the loop draws."""
    if not mkl.available():
        return False
    ours, theirs = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    for keep, size in ((0.5, 500), (0.8, 1501)):
        for generator in (ours, theirs):  # begin with an odd word
            torch.randint(2, (1,), generator=generator)
        expected = torch.empty(size).bernoulli_(keep, generator=theirs).div_(keep)
        if len(ours.get_state()) % 8 or len(ours.get_state()) < 8 * (WORDS + SIZE):
            return False
        if not torch.equal(_drawn(ours, torch.empty(size), keep), expected):
            return False
    return torch.equal(ours.get_state(), theirs.get_state())


@lru_cache
def _bits_of_inverse(keep: float) -> int:
    return int((F32(1.0) / F32(keep)).view(np.int32))


@pooled_loop
def _draw(state: Int64s, words: Int64s, kept: int, limit: int, found: Floats1) -> None:
    """Fill `found` with the float32 of the bits `kept`, or 0; `words` is scratch, two of 32 bits
    for each number."""
    size, value = len(found), np.int32(kept).view(np.float32)
    left, following = state[LEFT] & 0xFFFFFFFF, state[NEXT]
    drawn = view(words.ctypes.data, (2 * size,), np.uint32)
    twister = np.empty(SIZE, np.uint32)
    for i in range(SIZE):
        twister[i] = np.uint32(state[WORDS + i])
    place = 0
    while place < 2 * size:
        if left == 1:
            _twist(twister)
            left, following = SIZE + 1, 0
        number = min(left - 1, 2 * size - place)
        _temper(twister[following : following + number], drawn[place : place + number])
        place, left, following = place + number, left - number, following + number
    for i in range(SIZE):
        state[WORDS + i] = np.int64(twister[i])
    state[LEFT] = (state[LEFT] & ~0xFFFFFFFF) | left
    state[NEXT] = following
    of_number = np.int64((1 << (BITS - 32)) - 1)
    for k in range(size):
        upper = np.int64(drawn[2 * k]) & of_number
        number = (upper << np.int64(32)) | np.int64(drawn[2 * k + 1])
        found[k] = value if number < limit else F32(0.0)


@compiled
def _twist(twister: Array) -> None:
    """Make the next words of the generator."""
    for i in range(SIZE - MIDDLE):
        twister[i] = twister[i + MIDDLE] ^ _mixed(twister[i], twister[i + 1])
    for i in range(SIZE - MIDDLE, SIZE - 1):
        twister[i] = twister[i + MIDDLE - SIZE] ^ _mixed(twister[i], twister[i + 1])
    twister[SIZE - 1] = twister[MIDDLE - 1] ^ _mixed(twister[SIZE - 1], twister[0])


@compiled
def _mixed(here: np.uint32, after: np.uint32) -> np.uint32:
    y = (here & np.uint32(0x80000000)) | (after & np.uint32(0x7FFFFFFF))
    chosen = (np.uint32(0) - (after & np.uint32(1))) & np.uint32(0x9908B0DF)
    return np.uint32((y >> np.uint32(1)) ^ chosen)


@compiled
def _temper(words: Array, found: Array) -> None:
    for k in range(len(words)):
        y = words[k]
        y ^= y >> np.uint32(11)
        y ^= (y << np.uint32(7)) & np.uint32(0x9D2C5680)
        y ^= (y << np.uint32(15)) & np.uint32(0xEFC60000)
        found[k] = y ^ (y >> np.uint32(18))
