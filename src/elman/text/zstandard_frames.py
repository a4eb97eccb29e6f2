"""Detect truncated Zstandard files, which the library reads without an error.

A file is a row of frames, and a frame a row of blocks that give their sizes (RFC 8878).
`WholeFrames` follows these sizes while the library reads, without decompressing anything.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import BinaryIO

MAGIC = b"\x28\xb5\x2f\xfd"
SKIPPABLE = b"\x2a\x4d\x18"
"""The end of the magic number of a frame that is skipped; it begins with 0x50 to 0x5f."""
RLE = 1
"""Type of a block that is one repeated byte."""


class WholeFrames:
    """A file of frames; reading beyond its end within a frame raises an EOFError."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._steps = _steps()
        self._wanted = next(self._steps)
        self._taken = b""
        self._skip = 0

    def read(self, size: int = -1) -> bytes:
        data = self._raw.read(size)
        if not data and (self._skip or self._taken or self._wanted != len(MAGIC)):
            raise EOFError("it ends within a compressed frame")
        position = 0
        while position < len(data):
            if self._skip:
                step = min(self._skip, len(data) - position)
                self._skip -= step
            else:
                step = min(self._wanted - len(self._taken), len(data) - position)
                self._taken += data[position : position + step]
            position += step
            while not self._skip and len(self._taken) == self._wanted:
                found = self._steps.send(self._taken)
                self._taken = b""
                self._wanted, self._skip = max(found, 0), max(-found, 0)
        return data

    def close(self) -> None:
        self._raw.close()


def _steps() -> Generator[int, bytes, None]:
    """Yield how many bytes are needed and receive them; a negative number is skipped instead.

    Only the beginning of a frame needs as many bytes as a magic number has.
    """
    while True:
        magic = yield len(MAGIC)
        if magic[1:] == SKIPPABLE and magic[0] >> 4 == 5:
            low, high = (yield 3), (yield 1)
            yield -int.from_bytes(low + high, "little")
            continue
        if magic != MAGIC:
            raise ValueError("it has other bytes where a compressed frame should begin")
        descriptor = (yield 1)[0]
        is_single = bool(descriptor & 0x20)
        content_size = (is_single, 2, 4, 8)[descriptor >> 6]
        yield -((not is_single) + (0, 1, 2, 4)[descriptor & 3] + content_size)
        is_last = False
        while not is_last:
            block = int.from_bytes((yield 3), "little")
            is_last = bool(block & 1)
            yield -(1 if block >> 1 & 3 == RLE else block >> 3)
        if descriptor & 4:
            yield -4  # the checksum of the content
