"""An exercise of the tour: a question, and a check of the answer that somebody wrote in a file.

A check computes the answer where it can, and says what is wrong without giving the answer away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Verdict:
    right: bool
    why: str
    """One sentence."""


class Wrong(Exception):
    """A wrong answer; its text is the reason."""


@dataclass(frozen=True, kw_only=True)
class Exercise:
    id: str
    """The lecture and the number of the exercise, "004-2"."""
    question: str
    answer: str
    """What the file holds: a number, a Python function, a table, a JSON document, a model."""
    judge: Callable[[Path], str]
    """Return why an answer is right, or raise `Wrong`."""

    def check(self, file: str | Path) -> Verdict:
        try:
            return Verdict(True, self.judge(Path(file)))
        except Wrong as wrong:
            return Verdict(False, str(wrong))
