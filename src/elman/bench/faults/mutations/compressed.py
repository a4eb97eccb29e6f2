"""Damage to compressed text: parts, checksums, ends, bombs."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from random import Random

from elman.bench.faults.mutations.any_bytes import Mutation
from elman.bench.faults.mutations.lines import LINES


def _gz_parts(random: Random, data: bytes) -> bytes:
    text = gzip.decompress(data)
    half = len(text) // 2
    one, two = gzip.compress(text[:half]), gzip.compress(text[half:])
    return random.choice(
        (one + two, one + b"\0" * 512 + two, one + two[:-4], one + b"rest", two[:10])
    )


def _gz_check(random: Random, data: bytes) -> bytes:
    at = len(data) - random.choice((1, 5))  # the length, the CRC
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


BOMB = 32 << 20
"""Bytes of the one line that a bomb unfolds to; once a line took 120 times its size in memory."""


def _gz_bomb(random: Random, data: bytes) -> bytes:
    return gzip.compress(b"a " * (BOMB // 2))


def _zst(text: bytes, *, checksum: bool = True, size: bool = True) -> bytes:
    import zstandard

    packer = zstandard.ZstdCompressor(write_checksum=checksum, write_content_size=size)
    return packer.compress(text)


def _zst_text(data: bytes) -> bytes:
    import zstandard

    found: bytes = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)).read()
    return found


def _zst_parts(random: Random, data: bytes) -> bytes:
    text = _zst_text(data)
    half = len(text) // 2
    one, two = _zst(text[:half]), _zst(text[half:])
    return random.choice(
        (one + two, one + two[:-6], one + b"rest", one[:-1] + two, b"\x50\x2a\x4d\x18" + data)
    )


def _zst_check(random: Random, data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def _zst_unsized(random: Random, data: bytes) -> bytes:
    return _zst(_zst_text(data), checksum=random.random() < 0.5, size=False)


def _zst_unfinished(random: Random, data: bytes) -> bytes:
    """No checksum and no size: only the end of the last block shows that it is whole."""
    whole = _zst(_zst_text(data), checksum=False, size=False)
    return whole[: random.randrange(len(whole))]


def _zst_bomb(random: Random, data: bytes) -> bytes:
    return _zst(b"a " * (BOMB // 2), size=random.random() < 0.5)


def _recompressed(
    pack: Callable[[bytes], bytes], unpack: Callable[[bytes], bytes]
) -> dict[str, Mutation]:
    """The mutations of lines on the text inside."""

    def inside(mutation: Mutation) -> Mutation:
        return lambda random, data: pack(mutation(random, unpack(data)))

    return {f"inside-{name}": inside(mutation) for name, mutation in LINES.items()}


GZ: dict[str, Mutation] = {
    "parts": _gz_parts,
    "parts-2": _gz_parts,
    "check": _gz_check,
    "bomb": _gz_bomb,
    **_recompressed(gzip.compress, gzip.decompress),
}
ZST: dict[str, Mutation] = {
    "parts": _zst_parts,
    "parts-2": _zst_parts,
    "check": _zst_check,
    "unsized": _zst_unsized,
    "unfinished": _zst_unfinished,
    "unfinished-2": _zst_unfinished,
    "bomb": _zst_bomb,
    **_recompressed(_zst, _zst_text),
}
