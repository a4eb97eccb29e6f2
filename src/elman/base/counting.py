"""Numbers with nouns: `1 update`, `2,000 updates`."""

from __future__ import annotations


def counted(number: float, thing: str) -> str:
    """Format a number and a noun whose plural ends in `s`."""
    return f"{number:{',' if isinstance(number, int) else 'g'}} {thing}{'' if number == 1 else 's'}"
