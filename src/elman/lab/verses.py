"""Verses of the King James Bible without punctuation, for experiments that need labels.

The mark after a word tells where a clause ends, and nobody had to annotate it.
"""

from __future__ import annotations

import re
from functools import cache

from elman.text.corpora import materialise
from elman.text.sources import file_lines

NO_MARK = "none"
"""After a word that another word follows at once."""
_WORD = re.compile(r"([\w'’-]+)([^\w'’-]*)")

Verse = tuple[tuple[str, ...], tuple[str, ...]]
"""The words in lower case, and the mark after each."""


@cache
def all_verses() -> tuple[Verse, ...]:
    """Every verse once, in order: the Old Testament, then the New.

    About 170 are repeated word for word: one that is held out must not be in the training text.
    """
    (path,) = materialise("king-james")
    marks: dict[tuple[str, ...], tuple[str, ...]] = {}
    for words, after in map(unmarked, file_lines(path)):
        marks.setdefault(words, after)
    return tuple(marks.items())


def unmarked(line: str) -> Verse:
    """The words of a line, and the first punctuation mark after each."""
    found = [(word.lower(), after.strip()[:1]) for word, after in _WORD.findall(line)]
    return tuple(word for word, _ in found), tuple(mark or NO_MARK for _, mark in found)
