"""What a model's training text looked like, as far as its vocabulary shows.

lower-case     no entry has an upper-case letter
tokenised      words are split at white space, and none ends with a comma or the like
no marks       tokenised, and neither a full stop nor a comma is an entry
numbers as N   `N` is an entry, and no entry is a number
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

MOST_ATTACHED = 0.01
"""Share of the words that may end with a comma or the like in tokenised text: `Yahoo!`."""
FEWEST_MERGES = 200
"""Word pieces without an upper-case letter from which it is certain that the text had none."""
NUMBER = "N"
SPECIAL = re.compile(r"<\w+>|-[LR][RCS]B-")  # <unk>, <s>; brackets of treebanks
NUMBERS = re.compile(r"\d+(?:[.,:]\d+)*")
_ATTACHED = re.compile(r".*\w[,;!?]")


@dataclass(frozen=True)
class Form:
    """What the training text looked like, as far as its vocabulary shows."""

    lowercase: bool = False
    tokenised: bool = False
    """Marks and clitics are tokens of their own."""
    no_marks: bool = False
    """Tokenised, and punctuation was removed."""
    numbers: bool = False
    """Tokenised, and numbers were replaced by `N`."""

    @property
    def note(self) -> str:
        """How text is changed, in a phrase."""
        marks = "punctuation removed" if self.no_marks else "punctuation split off"
        steps = [
            *(["lower-cased"] if self.lowercase else []),
            *([marks] if self.tokenised else []),
            *([f"numbers as {NUMBER}"] if self.numbers else []),
        ]
        return ", ".join(steps)


def form_of(kind: str, spellings: Iterable[str], *, lowercases: bool) -> Form:
    """Infer the form of the training text from the vocabulary, without the boundary and the unknown
    token; the plain form if in doubt. `lowercases`: the tokenizer itself does."""
    if kind == "byte" or ":" in kind:
        return Form()
    entries = [word for word in spellings if not SPECIAL.fullmatch(word)]
    numbers = (
        kind == "pretokenized" and NUMBER in entries and not any(map(NUMBERS.fullmatch, entries))
    )
    cased = [word for word in entries if word.lower() != word.upper()]
    if kind in ("bpe", "sentencepiece"):
        # Single characters are there whether or not the text has them.
        cased = [word for word in cased if len(word.strip()) > 1]
        certain = len(cased) >= FEWEST_MERGES
    else:
        certain = bool(cased)
    letters = [word.replace(NUMBER, "") for word in cased] if numbers else cased
    is_lower = all(word == word.lower() for word in letters)
    lowercase = certain and is_lower and not lowercases
    if kind != "pretokenized":
        return Form(lowercase=lowercase)
    of_words = sum(len(word) > 1 for word in letters) > len(letters) / 2
    attached = sum(_ATTACHED.fullmatch(word) is not None for word in letters)
    if not of_words or attached > MOST_ATTACHED * len(letters):
        return Form(lowercase=lowercase)
    no_marks = not {".", ","} & set(entries)
    return Form(lowercase, True, no_marks, numbers)
