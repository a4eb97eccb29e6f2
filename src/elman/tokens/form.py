"""What a model's training text looked like, as far as its vocabulary shows.

lower-case     no entry has an upper-case letter
tokenised      words are split at white space, and none ends with a comma or the like
no marks       tokenised, and neither a full stop nor a comma is an entry
numbers as N   `N` is an entry, and no entry is a number
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

MOST_ATTACHED = 0.01
"""Share of the words that may end with a comma or the like in tokenised text: `Yahoo!`."""
FEWEST_MERGES = 200
"""Word pieces without an upper-case letter from which it is certain that the text had none."""
NUMBER = "N"
SPECIAL = re.compile(r"<\w+>|-[LR][RCS]B-")  # <unk>, <s>; brackets of treebanks
NUMBERS = re.compile(r"\d+(?:[.,:]\d+)*")
_ENDS = (",", ";", "!", "?")
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


@dataclass
class Tally:
    """Numbers of entries: those with letters are cased, and of them."""

    num_cased: int = 0
    num_longer: int = 0
    """Of more than one character."""
    num_attached: int = 0
    """That end with a comma or the like."""
    is_lower: bool = True
    """Whether none has an upper-case letter."""


def form_of(
    kind: str,
    entries: Collection[str],
    special: Collection[str],
    *,
    lowercases: bool,
    tallied: Callable[[bool], tuple[Tally, Iterable[str]]] | None = None,
) -> Form:
    """Infer the form of the training text from the entries of a vocabulary but for `special` ones;
    the plain form if in doubt. `lowercases`: the tokenizer itself does.

    There may be millions of entries, so no list of them is made. `tallied` may have counted most of
    the words in a faster way: it receives whether `N` stands for numbers, and returns its counts
    and the other entries.
    """
    if kind == "byte" or ":" in kind:
        return Form()
    is_words = kind == "pretokenized"
    numbers = is_words and NUMBER in entries and not any(map(NUMBERS.fullmatch, entries))
    tally, rest = (Tally(), entries) if tallied is None else tallied(numbers)
    for entry in rest:
        if entry.lower() == entry.upper() or entry in special or SPECIAL.fullmatch(entry):
            continue
        if kind in ("bpe", "sentencepiece") and len(entry.strip()) < 2:
            continue  # single characters are there whether or not the text has them
        word = entry.replace(NUMBER, "") if numbers else entry
        tally.num_cased += 1
        tally.is_lower = tally.is_lower and word == word.lower()
        tally.num_longer += len(word) > 1
        attached = is_words and word[-1:] in _ENDS and _ATTACHED.fullmatch(word) is not None
        tally.num_attached += attached
    num_cased, num_attached = tally.num_cased, tally.num_attached
    certain = num_cased >= (FEWEST_MERGES if kind in ("bpe", "sentencepiece") else 1)
    lowercase = certain and tally.is_lower and not lowercases
    of_words = tally.num_longer > num_cased / 2
    if not is_words or not of_words or num_attached > MOST_ATTACHED * num_cased:
        return Form(lowercase=lowercase)
    no_marks = "." not in entries and "," not in entries
    return Form(lowercase, True, no_marks, numbers)
