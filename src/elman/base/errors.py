"""Errors that a user can act on: a sentence that says what happened, a hint that says what to try.

The command line prints `message` and `hint` and leaves with `exit_code`; nothing else in the
package decides how an error looks. Anything that is not an `ElmanError` is a bug in Elman.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class ElmanError(Exception):
    """Something failed (exit code 1): a file cannot be read, a run diverged, a disk is full."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(ElmanError):
    """Something was asked for wrongly (exit code 2): an unknown name, a value out of range."""

    exit_code = 2


def nearest(word: str, candidates: Iterable[str]) -> str:
    """A hint that names the candidate closest to `word`, or lists them all where none is close."""
    names = sorted(candidates)
    if (found := closest(word, names)) is not None:
        return f"did you mean '{found}'?"
    return f"choose one of: {', '.join(names)}" if names else ""


def closest(word: str, candidates: Iterable[str]) -> str | None:
    """The candidate that `word` may have been meant as: it begins so, or is spelled much alike."""
    # The dashes of options are alike in all of them, and would make any two look similar.
    plain = {name.lstrip("-"): name for name in candidates}
    word = str(word).lstrip("-")  # what stands in a file may be a number
    begun = [name for name in plain if len(word) > 2 and name.startswith(word)]
    found = begun or get_close_matches(word, plain, n=1, cutoff=0.6)
    return plain[found[0]] if found else None
