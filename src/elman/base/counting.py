"""Numbers with nouns, `1 update` or `2,000 updates`, and the beginnings of lists."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: float, thing: str) -> str:
    """Format a number and a noun whose plural ends in `s`."""
    return f"{number:{',' if isinstance(number, int) else 'g'}} {thing}{'' if number == 1 else 's'}"


def some_of(names: Sequence[str], *, most: int = 6) -> str:
    """List the first names, and dots for others."""
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")
