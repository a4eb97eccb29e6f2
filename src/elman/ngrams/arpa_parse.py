"""The inner loop of reading ARPA files: parse lines of n-grams into ids and numbers.

`Section` collects the n-grams of one length; `WordTable` maps words to ids.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from elman.ngrams.compiled import Scalar, compiled
from elman.ngrams.from_lists import NgramList
from elman.ngrams.interpolation import Floats

Bytes = NDArray[np.uint8]
Table = NDArray[np.int64]

LN_10 = np.float32(math.log(10))
REASONS = {
    1: "'{word}' is not a number",
    2: "expected a number, {length} words and an optional number",
    3: "the word '{word}' is not among the 1-grams",
    4: "'{word}' is too large; only a log probability may be -inf",
}
LARGEST = 1e37
"""Limit of a number: beyond, its natural logarithm would be infinite in float32."""
_NUMBER = re.compile(rb"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|-[iI][nN][fF]")


def number(text: bytes) -> float | None:
    """Parse a number; None if it is not one."""
    return float(text) if _NUMBER.fullmatch(text) else None


class WordTable:
    """A hash table from the bytes of a word to its id."""

    def __init__(self, words: Sequence[bytes], aliases: Mapping[bytes, int]) -> None:
        """`words` are listed by id; `aliases` are further spellings with their ids."""
        spelled = [*words, *aliases]
        self.letters = np.frombuffer(b"".join(spelled), np.uint8)
        self.starts = np.cumsum([0, *(len(word) for word in spelled)])
        self.ids = np.array([*range(len(words)), *aliases.values()])
        self.slots = np.full(1 << (2 * len(spelled)).bit_length(), -1, np.int64)
        _fill_table(self.letters, self.starts, self.slots)


class Section:
    """The n-grams of one length, collected block by block."""

    def __init__(self, length: int, table: WordTable) -> None:
        self.length, self.table = length, table
        self.num_ngrams = 0
        self._ids = np.empty((1 << 12, length), np.int32)
        self._numbers = np.empty((1 << 12, 2), np.float32)

    def read(self, data: bytes, position: int) -> tuple[int, int, str]:
        """Parse lines from `position` to the end of `data` or of the section.

        Return the new position, the number of lines and the error message, if any.
        """
        block = np.frombuffer(data, np.uint8)
        num_lines = 0
        while True:
            state = np.zeros(5, np.int64)
            _parse(
                block, position, self.length, self.table.letters, self.table.starts,
                self.table.ids, self.table.slots, self._ids, self._numbers, self.num_ngrams, state,
            )  # fmt: skip
            position, num_lines = int(state[0]), num_lines + int(state[1])
            self.num_ngrams, problem, place = (int(value) for value in state[2:])
            if problem or self.num_ngrams < len(self._ids):
                break
            self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
            self._numbers = np.concatenate([self._numbers, np.empty_like(self._numbers)])
        if not problem:
            return position, num_lines, ""
        word = b"".join(data[place : place + 80].split(maxsplit=1)[:1]).decode(errors="replace")
        return position, num_lines, REASONS[problem].format(length=self.length, word=word)

    def ngrams(self, line_start_id: int, boundary_id: int) -> NgramList:
        """Return the n-grams, with `boundary_id` for line starts as well.

        N-grams with a line start or end in the middle can never apply and are dropped.
        """
        ids, numbers = self._ids[: self.num_ngrams], self._numbers[: self.num_ngrams]
        odd = (ids[:, 1:] == line_start_id).any(1) | (ids[:, :-1] == boundary_id).any(1)
        if odd.any():
            ids, numbers = ids[~odd], numbers[~odd]
        ids[ids == line_start_id] = boundary_id
        return NgramList(ids, numbers[:, 0] * LN_10, numbers[:, 1] * LN_10)


@compiled
def _hash(letters: Bytes, start: Scalar, end: Scalar) -> Scalar:
    value = np.uint64(14695981039346656037)  # Fowler, Noll and Vo
    for i in range(start, end):
        value = (value ^ np.uint64(letters[i])) * np.uint64(1099511628211)
    return np.int64((value ^ (value >> np.uint64(32))) & np.uint64(0x7FFFFFFFFFFFFFFF))


@compiled
def _fill_table(letters: Bytes, starts: Table, slots: Table) -> None:
    for word in range(len(starts) - 1):
        slot = _hash(letters, starts[word], starts[word + 1]) & (len(slots) - 1)
        while slots[slot] >= 0:
            slot = (slot + 1) & (len(slots) - 1)
        slots[slot] = word


@compiled
def _look_up(
    text: Bytes, start: Scalar, end: Scalar, letters: Bytes, starts: Table, slots: Table
) -> Scalar:
    slot = _hash(text, start, end) & (len(slots) - 1)
    while slots[slot] >= 0:
        word = slots[slot]
        size = starts[word + 1] - starts[word]
        if size == end - start:
            same = True
            for i in range(size):
                if letters[starts[word] + i] != text[start + i]:
                    same = False
                    break
            if same:
                return word
        slot = (slot + 1) & (len(slots) - 1)
    return -1


@compiled
def _is_infinity(text: Bytes, start: Scalar, end: Scalar) -> Scalar:
    """Match -inf in any case."""
    return (
        end - start == 4
        and text[start] == 45
        and text[start + 1] | 32 == 105
        and text[start + 2] | 32 == 110
        and text[start + 3] | 32 == 102
    )


@compiled
def _read_number(text: Bytes, start: Scalar, end: Scalar) -> tuple[Scalar, bool]:
    """Return a decimal number or -inf, and whether the text is one."""
    at, sign = start, 1.0
    if at < end and (text[at] == 45 or text[at] == 43):
        sign = -1.0 if text[at] == 45 else 1.0
        at += 1
    if _is_infinity(text, start, end):
        return -np.inf, True
    digits: Scalar = 0.0
    scale, num_digits = 0, 0
    while at < end and 48 <= text[at] <= 57:
        digits = digits * 10 + (text[at] - 48)
        at += 1
        num_digits += 1
    if at < end and text[at] == 46:
        at += 1
        while at < end and 48 <= text[at] <= 57:
            digits = digits * 10 + (text[at] - 48)
            scale -= 1
            at += 1
            num_digits += 1
    if num_digits == 0 or num_digits > 300:
        return 0.0, False
    if at < end and (text[at] | 32) == 101:
        at += 1
        exponent: Scalar = 0
        negative = False
        if at < end and (text[at] == 45 or text[at] == 43):
            negative = text[at] == 45
            at += 1
        if at == end or end - at > 4:
            return 0.0, False
        while at < end and 48 <= text[at] <= 57:
            exponent = exponent * 10 + (text[at] - 48)
            at += 1
        scale += -exponent if negative else exponent
    return sign * digits * 10.0**scale, at == end


@compiled
def _parse(
    text: Bytes, position: Scalar, length: Scalar, letters: Bytes, starts: Table, word_ids: Table,
    slots: Table, ids: NDArray[np.int32], numbers: Floats, num_ngrams: Scalar, state: Table,
) -> None:  # fmt: skip
    """Parse lines until the text ends, `ids` is full or a line begins with a backslash.

    Sets `state` to the position, lines read, number of n-grams, problem (0 if none) and its place.
    """
    num_lines, problem, place = 0, 0, 0
    while position < len(text) and num_ngrams < len(ids):
        at = position
        while at < len(text) and (text[at] == 32 or text[at] == 9 or text[at] == 13):
            at += 1
        if at < len(text) and text[at] == 92:  # a backslash
            break
        num_lines += 1
        field = 0
        while at < len(text) and text[at] != 10:
            start = at
            while at < len(text) and text[at] != 32 and text[at] != 9 and text[at] != 10:
                if text[at] == 13:
                    break
                at += 1
            if field == 0 or field == length + 1:
                value, valid = _read_number(text, start, at)
                if not valid:
                    problem, place = 1, start
                    break
                if not abs(value) <= LARGEST and not (field == 0 and _is_infinity(text, start, at)):
                    problem, place = 4, start
                    break
                numbers[num_ngrams, 0 if field == 0 else 1] = value
            elif field <= length:
                word = _look_up(text, start, at, letters, starts, slots)
                if word < 0:
                    problem, place = 3, start
                    break
                ids[num_ngrams, field - 1] = word_ids[word]
            else:
                problem, place = 2, start
                break
            field += 1
            while at < len(text) and (text[at] == 32 or text[at] == 9 or text[at] == 13):
                at += 1
        if problem == 0 and 0 < field <= length:
            problem, place = 2, position
        if problem:
            break
        if field > 0:
            if field == length + 1:
                numbers[num_ngrams, 1] = 0.0
            num_ngrams += 1
        position = at + 1
    state[0], state[1], state[2], state[3], state[4] = (
        position, num_lines, num_ngrams, problem, place,
    )  # fmt: skip
