"""The limit on the length of a line, which all readers of lines check.

A compressed file of a few kilobytes may be one line of gigabytes, and a model of sentences needs
hundreds of bytes of memory for each byte of a line.
"""

from __future__ import annotations

from elman.base.errors import ElmanError

LONGEST_LINE = 1 << 20
"""Default limit on the bytes of a line."""
_limit = LONGEST_LINE


def longest_line() -> int:
    return _limit


def set_longest_line(num_bytes: int | None) -> int | None:
    """Change the limit of this process; None restores the default. Return `num_bytes`."""
    global _limit
    _limit = LONGEST_LINE if num_bytes is None else num_bytes
    return num_bytes


def too_long(where: str, limit: int) -> ElmanError:
    return ElmanError(
        f"{where} is longer than {limit:,} bytes",
        "split it, or raise the limit with --max-line, in Python with "
        "elman.text.line_limit.set_longest_line",
    )
