"""Errors for users: a message that says what happened, a hint that says what to try.

The command line prints `message` and `hint` and exits with `exit_code`. Any exception that is not
an `ElmanError` is a bug in Elman.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from numbers import Integral
from pathlib import Path
from typing import Any


class ElmanError(Exception):
    """A failure (exit code 1): an unreadable file, a diverged run, a full disk."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        from elman.base.origins import with_origins  # imports this module

        self.message = with_origins(message)
        self.hint = with_origins(hint)
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class UsageError(ElmanError):
    """A wrong request (exit code 2): an unknown name, a value out of range."""

    exit_code = 2


TYPES: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "a table of names and values",
    Mapping: "a table of names and values",
    Path: "a path",
}


def in_words(kind: Any) -> str:
    """Name a type as people do who do not write Python."""
    return TYPES.get(kind) or str(getattr(kind, "__name__", kind))


def check_text(text: object, *others: type) -> None:
    """Refuse anything but a str, or one of the `others`, where a text is expected."""
    is_bytes = isinstance(text, (bytes, bytearray, memoryview))
    if is_bytes or not isinstance(text, (str, *others)):
        raise UsageError(
            f"a text must be a str, not {type(text).__name__}",
            "decode the bytes first" if is_bytes else "give a str",
        )


def check_k(k: object) -> None:
    """Refuse to look for the `k` best of something if `k` is less than 1."""
    if not isinstance(k, Integral) or k < 1:
        raise UsageError(f"k cannot be {k!r}", "use 1 or more")


def nearest(word: str, candidates: Iterable[str]) -> str:
    """Return a hint that names the candidate closest to `word`, or lists all if none is close."""
    names = sorted(candidates)
    if (found := closest(word, names)) is not None:
        return f"did you mean '{found}'?"
    return f"choose one of: {', '.join(names)}" if names else ""


def closest(word: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate that starts with `word` or is spelled similarly."""
    # Without the dashes of options, which would make any two of them look similar.
    plain = {name.lstrip("-"): name for name in candidates}
    word = str(word).lstrip("-")  # a value in a file may be a number
    begun = [name for name in plain if len(word) > 2 and name.startswith(word)]
    found = begun or get_close_matches(word, plain, n=1, cutoff=0.6)
    return plain[found[0]] if found else None
