"""Bring plain text into the form of a model's training text.

A model of tokenised, lower-case words does not know `The` or `book.`; its training text had `the`
and `book .` instead. What that text looked like is read off the vocabulary (`form.py`), so runs of
any age and models from elsewhere can be fitted to.

A word that is an entry stays as it is. So the training text itself, and text written like it, are
read exactly as without fitting, and no known word becomes unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from elman.base.errors import check_text
from elman.text.sources import byte_blocks, file_lines
from elman.tokens.choose import choose_for
from elman.tokens.form import NUMBER, NUMBERS, SPECIAL, Form
from elman.tokens.kind import BOUNDARY, Ids
from elman.tokens.tokenizer import Tokenizer

SAMPLE_LINES = 1000
SAMPLE_BYTES = 1 << 18
"""How much of a text decides whether it is already tokenised."""
SPACED = 0.9
"""Share of the punctuation marks that follow a space in text that is already tokenised."""
LONGEST_WORD = 100
"""Longer words are not split: that takes time and stack with the square of their length."""

_WORD = re.compile(r"[^\s\x1c-\x1f]+")
_MARKS = re.compile(r"[^\w\s]+")
_OPENING = re.compile(r"--+|[\"'“‘«»„‹(\[{<*_#$£€¥¿¡…—–-]")
_CLOSING = re.compile(r"\.\.\.|--+|''|[.,;:!?…\"'”’»«›)\]}>%*_/—–-]")
_DASHES = re.compile(r"(--+|[—–…/])")
_CLITIC = re.compile(r"(?i)(.*?\w)(n['’]t|['’](?:s|re|ve|ll|d|m|t))")
_CANNOT = re.compile(r"(?i)(can)(not)")
_JOINTS = re.compile(r"(?<=\w)-(?=\w)|(?<=\d)[,.](?=\d)")
VARIANTS = {
    **dict.fromkeys(('"', "“", "„", "«"), ('"', "``")),
    "”": ('"', "''"),
    "»": ('"', "''"),
    **dict.fromkeys(("‘", "’"), ("'", "`")),
    **dict.fromkeys(("—", "–"), ("—", "–", "--", "-")),
    "…": ("...",),
    "(": ("-LRB-", "-lrb-"),
    ")": ("-RRB-", "-rrb-"),
    "[": ("-LSB-", "-lsb-", "-LRB-", "-lrb-"),
    "]": ("-RSB-", "-rsb-", "-RRB-", "-rrb-"),
}
"""Other spellings of a mark in tokenised text, tried in this order."""

Piece = tuple[str, int, int]
"""A token of the training text's form, and its span in the text as given."""


class Fitting:
    """Fits texts to one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.form = tokenizer.training_form
        self._made: dict[Form, FittedTokenizer] = {}

    def tokenizer_for(self, sample: Sequence[str]) -> Tokenizer:
        """Return a tokenizer that reads text like `sample`, its first lines, in the form of the
        training text; the plain one if that changes nothing.

        Text that is already tokenised is at most lower-cased.
        """
        form = self.form
        if form.tokenised:
            # With a line end, which shows that a last full stop is one.
            looks = choose_for([f"{line}\n" for line in sample], 0)
            if looks.unknown_share or looks.spaced_marks_share > SPACED:
                form = Form(lowercase=form.lowercase)
        if form == Form():
            return self.tokenizer
        if form not in self._made:
            self._made[form] = FittedTokenizer(self.tokenizer, form)
        found = self._made[form]
        return found if any(map(found.changes, sample)) else self.tokenizer


def first_lines(files: Sequence[Path]) -> list[str]:
    """Return lines from the beginning of files, for `fitted`."""
    lines: list[str] = []
    for file in files[:8]:
        block = next(byte_blocks(file, SAMPLE_BYTES), None)
        lines += [] if block is None else block.text.split("\n")[:SAMPLE_LINES]
    return lines


class FittedTokenizer(Tokenizer):
    """Reads text in the form of the training text; spans are those in the text as given."""

    def __init__(self, tokenizer: Tokenizer, form: Form) -> None:
        # Share the vocabulary, which may be large.
        vars(self).update(vars(tokenizer))
        self.form = form
        # A cache of each instance's own: it ends with the tokenizer.
        self._split: Callable[[str], list[Piece]] = lru_cache(50_000)(self._pieces_of)

    @property
    def reads_as(self) -> str:
        return self.form.note

    @property
    def _entries(self) -> Mapping[str, int]:
        return self._kind.vocab

    def encode(self, text: str) -> Ids:
        check_text(text)
        return super().encode(self.rewritten(text))

    def encode_spans(self, text: str) -> tuple[Ids, list[tuple[int, int]]]:
        check_text(text)
        if not self.form.tokenised:
            return super().encode_spans(self.rewritten(text))
        pieces = list(self._pieces_in(text))
        ids = [self._entries.get(piece, self.unknown_id or 0) for piece, _, _ in pieces]
        return np.array(ids, np.int32), [(start, end) for _, start, end in pieces]

    def words(self, line: str) -> list[str]:
        return super().words(self.rewritten(line))

    def rewritten(self, text: str) -> str:
        """The text in the form of the training text."""
        if not self.form.tokenised:
            if self.kind == "pretokenized":
                return _WORD.sub(lambda word: self._known(word[0]) or self._lowered(word[0]), text)
            return self._lowered(text)
        lines = text.split("\n")
        return "\n".join(" ".join(p for p, _, _ in self._pieces_in(line)) for line in lines)

    def changes(self, line: str) -> bool:
        """Whether the line has other tokens than without fitting."""
        return not np.array_equal(self.encode(line), super().encode(line))

    def rewrite(self, files: Sequence[Path], target: Path) -> int:
        """Write the text of files in the form of the training text; return the bytes of text."""
        num_bytes = 0
        with target.open("w", encoding="utf-8") as output:
            for file in files:
                for line in file_lines(file):
                    num_bytes += len(line.encode())
                    output.write(self.rewritten(line.removesuffix("\n")) + "\n")
        return num_bytes

    def _pieces_in(self, text: str) -> Iterator[Piece]:
        """Yield the pieces of a text, line ends as boundary tokens."""
        for match in re.finditer(rf"\n|{_WORD.pattern}", text):
            start = match.start()
            if match.group() == "\n":
                yield BOUNDARY, start, match.end()
            else:
                for piece, first, last in self._split(match.group()):
                    yield piece, start + first, start + last

    def _pieces_of(self, word: str) -> list[Piece]:
        """Split a word without white space; spans are counted from its beginning."""
        if (known := self._known(word)) is not None:
            return [(known, 0, len(word))]
        if SPECIAL.fullmatch(word) or len(word) > LONGEST_WORD:
            return [(word, 0, len(word))]
        if _CLOSING.fullmatch(word) or _OPENING.fullmatch(word):
            mark = self._mark(word)
            dropped = self.form.no_marks and self._is_foreign_mark(mark)
            return [] if dropped else [(mark, 0, len(word))]
        start, end = 0, len(word)
        before: list[Piece] = []
        after: list[Piece] = []
        core: str | None = None
        while start < end and core is None:
            if closing := _last(_CLOSING, word, start, end):
                after.insert(0, (self._mark(word[closing:end]), closing, end))
                end = closing
            elif opening := _OPENING.match(word, start, end):
                mark = self._mark(opening.group(), opens=True)
                before.append((mark, start, opening.end()))
                start = opening.end()
            else:
                break
            core = self._known(word[start:end])
        inner = [(core, start, end)] if core is not None else self._inner(word, start, end)
        return [
            piece
            for piece in (*before, *inner, *after)
            if not (self.form.no_marks and self._is_foreign_mark(piece[0]))
        ]

    def _inner(self, word: str, start: int, end: int) -> list[Piece]:
        """Split what is left of a word between its outer marks."""
        core = word[start:end]
        if not core:
            return []
        for pattern in (_CLITIC, _CANNOT):
            found = pattern.fullmatch(core)
            cut = self._clitic(found) if found else None
            if cut is not None:
                return self._apart(word, start, start + cut, end)
        if dash := _DASHES.search(core):
            return self._around(word, start, end, dash, self._mark(dash.group()))
        joint = _JOINTS.search(core)
        if joint and (mark := f"@{joint[0]}@") in self._entries:  # well @-@ known, 1 @,@ 000
            return self._around(word, start, end, joint, mark)
        return [(self._lowered(core), start, end)]

    def _around(
        self, word: str, start: int, end: int, found: re.Match[str], mark: str
    ) -> list[Piece]:
        """Split `word[start:end]` at a mark that was found in it."""
        first, last = start + found.start(), start + found.end()
        left, right = self._shifted(word, start, first), self._shifted(word, last, end)
        return [*left, (mark, first, last), *right]

    def _clitic(self, found: re.Match[str]) -> int | None:
        """Where to split a contraction, if its ending is an entry: do n't, or don 't."""
        whole = found.group().replace("’", "'")
        for cut in (found.end(1), whole.rfind("'")):
            if 0 < cut < len(whole) and self._known(whole[cut:]) is not None:
                return cut
        return None

    def _apart(self, word: str, start: int, cut: int, end: int) -> list[Piece]:
        ending = self._known(word[cut:end].replace("’", "'")) or word[cut:end]
        return [*self._shifted(word, start, cut), (ending, cut, end)]

    def _shifted(self, word: str, start: int, end: int) -> list[Piece]:
        """The pieces of a part of a word."""
        return [(p, start + a, start + b) for p, a, b in self._split(word[start:end])]

    def _known(self, word: str) -> str | None:
        """The entry for a word: as it is, lower-cased, with a plain apostrophe, or as a number."""
        candidates = [word]
        if self.form.lowercase:
            candidates.append(self._lowered(word))
        candidates += [c.replace("’", "'") for c in candidates if "’" in c]
        for candidate in candidates:
            if candidate in self._entries:
                return candidate
        if self.form.numbers and NUMBERS.search(word):  # 5,000 as N, 20-year as N-year
            number = NUMBERS.sub(NUMBER, candidates[-1])
            return number if number in self._entries else None
        return None

    def _mark(self, mark: str, *, opens: bool = False) -> str:
        """The entry for a mark, in another spelling if need be."""
        if mark in self._entries:
            return mark
        others = VARIANTS.get(mark, ())
        if mark == '"' and not opens:
            others = ("''",)
        return next((other for other in others if other in self._entries), mark)

    def _is_foreign_mark(self, piece: str) -> bool:
        return piece not in self._entries and _MARKS.fullmatch(piece) is not None

    def _lowered(self, text: str) -> str:
        """Lower-case letter by letter, so that places in the text stay the same."""
        if not self.form.lowercase:
            return text
        lowered = text.replace("Σ", "σ").lower()
        if len(lowered) == len(text):
            return lowered
        return "".join(c.lower() if len(c.lower()) == 1 else c for c in text)


def _last(pattern: re.Pattern[str], word: str, start: int, end: int) -> int:
    """Where a mark at the end of `word[start:end]` begins; 0 if there is none, or nothing else."""
    for length in (3, 2, 1):
        place = end - length
        if place > start and pattern.fullmatch(word, place, end):
            return place
    return 0


def count_unknown(
    tokenizer: Tokenizer, lines: Iterable[str], *, include_end: bool = False
) -> tuple[int, int]:
    """Count the unknown tokens of lines, and all; with `include_end`, an end mark for each."""
    num_tokens = num_unknown = 0
    for line in lines:
        ids = tokenizer.encode(line)
        num_tokens += len(ids) + include_end
        num_unknown += int((ids == tokenizer.unknown_id).sum())
    return num_unknown, num_tokens
