"""Damage to bytes of any format."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

Mutation = Callable[[Random, bytes], bytes]

DEPTH = 100_000
"""Levels of nested brackets: more than any parser that recurses can take."""
DIGITS = 5_000
"""Digits of a number: more than Python converts by default (4,300)."""


def _span(random: Random, data: bytes) -> tuple[int, int]:
    """A random part, mostly short."""
    start = random.randrange(len(data) + 1)
    return start, min(len(data), start + random.choice((1, 2, 7, 64, 1024)))


def flip_bit(random: Random, data: bytes) -> bytes:
    changed = bytearray(data)
    if changed:
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def flip_many_bits(random: Random, data: bytes) -> bytes:
    for _ in range(random.choice((2, 8, 64))):
        data = flip_bit(random, data)
    return data


def truncate(random: Random, data: bytes) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def cut_end(random: Random, data: bytes) -> bytes:
    return data[: -random.choice((1, 2, 4, 8))]


def cut_beginning(random: Random, data: bytes) -> bytes:
    return data[random.choice((1, 2, 4, 8, 100)) :]


def insert_bytes(random: Random, data: bytes) -> bytes:
    at, _ = _span(random, data)
    return data[:at] + random.randbytes(random.choice((1, 4, 100))) + data[at:]


def remove_block(random: Random, data: bytes) -> bytes:
    start, end = _span(random, data)
    return data[:start] + data[end:]


def repeat_block(random: Random, data: bytes) -> bytes:
    start, end = _span(random, data)
    return data[:end] + data[start:end] * random.choice((1, 3)) + data[end:]


def swap_blocks(random: Random, data: bytes) -> bytes:
    a, b, c, d = sorted(random.randrange(len(data) + 1) for _ in range(4))
    return data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]


def zero_block(random: Random, data: bytes) -> bytes:
    start, end = _span(random, data)
    return data[:start] + bytes(end - start) + data[end:]


def fill_block(random: Random, data: bytes) -> bytes:
    start, end = _span(random, data)
    return data[:start] + b"\xff" * (end - start) + data[end:]


def append_bytes(random: Random, data: bytes) -> bytes:
    return data + random.choice((b"\0", b"\n", b"}", random.randbytes(100), bytes(4096)))


def double(random: Random, data: bytes) -> bytes:
    return data + data


def empty(random: Random, data: bytes) -> bytes:
    return b""


def all_zero(random: Random, data: bytes) -> bytes:
    return bytes(len(data))


def noise(random: Random, data: bytes) -> bytes:
    return random.randbytes(min(len(data), 4096))


ANY: dict[str, Mutation] = {
    "flip-bit": flip_bit,
    "flip-many": flip_many_bits,
    "truncate": truncate,
    "cut-end": cut_end,
    "cut-beginning": cut_beginning,
    "insert": insert_bytes,
    "remove": remove_block,
    "repeat": repeat_block,
    "swap": swap_blocks,
    "zeros": zero_block,
    "ones": fill_block,
    "append": append_bytes,
    "double": double,
    "empty": empty,
    "all-zero": all_zero,
    "noise": noise,
}
