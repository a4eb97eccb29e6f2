"""Numbers of things in sentences: `1 update`, `2,000 updates`."""

from __future__ import annotations


def counted(number: float, thing: str) -> str:
    """So many of a thing, in the plural unless it is one; the plural must only need an `s`."""
    return f"{number:{',' if isinstance(number, int) else 'g'}} {thing}{'' if number == 1 else 's'}"
