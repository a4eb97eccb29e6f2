"""Number the stretches of a text as they are read: a growing table for each thread.

`Table` numbers the stretches (strings between white space) that one thread reads. `join` gives all
tables the same numbers in the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from elman.base.threads import in_threads
from elman.ngrams.compiled import Scalar, compiled
from elman.ngrams.vocabulary import Spellings

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]

LINE_END = 0
"""The number of a line end; stretches are numbered from 1."""
FEW = 1 << 12
"""Stretches that one thread joins as fast as many."""


class Table:
    """A growing hash table from stretches to numbers.

    Like KenLM's, it compares 64-bit hashes only: with ten million stretches, the probability of a
    collision is 3 in a million.
    """

    def __init__(self) -> None:
        self.slots = np.full((1 << 16, 2), -1, np.int64)
        """Hash and number of a stretch; the number is -1 in a free slot."""
        self.starts = np.zeros((1 << 15) + 1, np.int64)
        self.letters = np.empty(1 << 18, np.uint8)
        self.letters[0] = 10
        self.starts[1] = 1
        self.size = 1
        self.forget_room()

    def forget_room(self) -> None:
        """Free the memory that `numbers` uses again."""
        self._text, self._found = np.empty(0, np.uint8), np.empty(0, np.int32)

    def numbers(self, data: Bytes) -> NDArray[np.int32]:
        """Number the stretches and line ends of a block."""
        # Upper limit: each byte makes at most one number. Trailing spaces save the loop a check for
        # the end. Both again and again: new memory stops all threads while the system maps it.
        if len(self._found) < len(data) + 3:
            self._text = np.empty(len(data) + 3, np.uint8)
            self._found = np.empty(len(data) + 3, np.int32)
        text, found = self._text[: len(data) + 3], self._found
        text[:-3], text[-3:] = data, 32
        position, num_found = 0, 0
        while position < len(text) - 2:
            position, num_found, self.size = _scan(
                text, position, self.slots, self.starts, self.letters, self.size, found, num_found
            )
            if position < len(text) - 2:
                self._grow(len(text))
        return found[:num_found].copy()

    def find(
        self, words: Spellings, first: int, end: int, unknown_id: int | None, ids: NDArray[np.int32]
    ) -> None:
        """Look some stretches up in a table whose numbers are one more than ids."""
        _find(self.slots, words.letters, words.starts, first, end, unknown_id, ids)

    def keys(self) -> Numbers:
        """Return the hash of each number."""
        keys = np.zeros(self.size, np.int64)
        _read_keys(self.slots, keys)
        return keys

    def spellings(self) -> Spellings:
        return Spellings(self.letters, self.starts[: self.size + 1])

    def _grow(self, stretch_size: int) -> None:
        if len(self.letters) < self.starts[self.size] + stretch_size:
            size = 2 * len(self.letters) + stretch_size
            self.letters = np.concatenate([self.letters, np.empty(size, np.uint8)])
        if 2 * self.size == len(self.slots):
            self._double()

    def _double(self) -> None:
        slots = np.full((2 * len(self.slots), 2), -1, np.int64)
        _refill(self.slots, slots)
        self.slots = slots
        self.starts = np.concatenate([self.starts, np.zeros(len(slots) // 4, np.int64)])


def join(
    tables: Sequence[Table], num_threads: int
) -> tuple[Spellings, dict[int, NDArray[np.int32]]]:
    """Return the stretches of all tables, and for each table (by id) its numbers among them.

    Stretches are divided by their hashes, so that each thread joins those of a part.
    """
    parts = num_threads if sum(table.size for table in tables) > FEW else 1
    keys = in_threads(Table.keys, tables, num_threads)
    found = in_threads(partial(_share_sizes, parts=parts), keys, num_threads)
    index = [np.zeros(table.size, np.int32) for table in tables]

    def merge(part: int) -> tuple[NDArray[np.int32], list[int], int]:
        most = sum(int(sizes[part]) for sizes in found)
        slots = np.full((1 << (2 * most).bit_length(), 2), -1, np.int64)
        new = np.empty(most, np.int32)
        ends, num_letters = [0], 0
        for table, its_keys, numbers in zip(tables, keys, index, strict=True):
            size, letters = _merge(
                its_keys, part, parts, table.starts, slots, ends[-1], new, numbers
            )
            ends.append(int(size))
            num_letters += int(letters)
        return new, ends, num_letters

    merged = in_threads(merge, range(parts), num_threads)
    first = np.cumsum([1, *(ends[-1] for _, ends, _ in merged)])
    at = np.cumsum([1, *(num_letters for _, _, num_letters in merged)])
    letters, starts = np.empty(at[-1], np.uint8), np.empty(first[-1] + 1, np.int64)
    letters[0], starts[0], starts[-1] = 10, 0, at[-1]

    def gather(part: int) -> None:
        new, ends, _ = merged[part]
        where = at[part]
        for table, (begin, end) in zip(tables, pairwise(ends), strict=True):
            own = starts[first[part] + begin : first[part] + end]
            where = _gather(table.letters, table.starts, new[begin:end], letters, own, where)

    in_threads(gather, range(parts), num_threads)
    in_threads(lambda i: _shift(keys[i], first[:-1], index[i]), range(len(tables)), num_threads)
    by_id = {id(table): numbers for table, numbers in zip(tables, index, strict=True)}
    return Spellings(letters, starts), by_id


def _share_sizes(keys: Numbers, parts: int) -> Numbers:
    sizes = np.zeros(parts, np.int64)
    _count_shares(keys, sizes)
    return sizes


@compiled
def _space_size(first: Scalar, second: Scalar, third: Scalar) -> Scalar:
    """Return the size of the white-space character (as in `str.split`) that begins here, or 0."""
    if first <= 32:
        return 1 if first == 32 or 9 <= first <= 13 or 28 <= first <= 31 else 0
    if first == 0xC2:
        return 2 if second == 0x85 or second == 0xA0 else 0
    if first == 0xE1:
        return 3 if second == 0x9A and third == 0x80 else 0
    if first == 0xE3:
        return 3 if second == 0x80 and third == 0x80 else 0
    if first == 0xE2 and second == 0x80:
        return 3 if third <= 0x8A or third == 0xA8 or third == 0xA9 or third == 0xAF else 0
    return 3 if first == 0xE2 and second == 0x81 and third == 0x9F else 0


_NO_LETTERS = np.uint64(14695981039346656037)


@compiled
def _with_letter(value: Scalar, byte: Scalar) -> Scalar:
    """Continue the hash of a stretch, that of Fowler, Noll and Vo, from `_NO_LETTERS` on."""
    return (value ^ np.uint64(byte)) * np.uint64(1099511628211)


@compiled
def _key(value: Scalar) -> Scalar:
    """Mix the hash: its last bits choose a slot."""
    return np.int64(value ^ (value >> np.uint64(29)))


@compiled
def is_text(data: Bytes) -> bool:
    """Whether this is UTF-8 without NUL."""
    size, i = len(data), 0
    while i < size:
        first = data[i]
        if first < 0x80:
            if first == 0:
                return False
            i += 1
            continue
        # The next byte of the smallest and of the largest character that begins like this.
        low, high = 0x80, 0xBF
        if 0xC2 <= first <= 0xDF:
            more = 1
        elif 0xE0 <= first <= 0xEF:
            more = 2
            if first == 0xE0:
                low = 0xA0
            elif first == 0xED:
                high = 0x9F
        elif 0xF0 <= first <= 0xF4:
            more = 3
            if first == 0xF0:
                low = 0x90
            elif first == 0xF4:
                high = 0x8F
        else:
            return False
        if i + more >= size or data[i + 1] < low or data[i + 1] > high:
            return False
        for j in range(2, more + 1):
            if data[i + j] < 0x80 or data[i + j] > 0xBF:
                return False
        i += more + 1
    return True


@compiled
def _scan(
    text: Bytes, position: Scalar, slots: Numbers, starts: Numbers, letters: Bytes, size: Scalar,
    found: NDArray[np.int32], num_found: Scalar,
) -> tuple[Scalar, Scalar, Scalar]:  # fmt: skip
    """Number stretches until the text ends or the table is full."""
    mask = len(slots) - 1
    end = len(text) - 2
    while position < end:
        if text[position] == 10:
            found[num_found] = LINE_END
            num_found += 1
            position += 1
            continue
        space = _space_size(text[position], text[position + 1], text[position + 2])
        if space > 0:
            position += space
            continue
        start = position
        value = _NO_LETTERS
        while True:
            byte = text[position]
            # Other bytes never begin white space.
            if (byte <= 32 or byte >= 0xC2) and _space_size(
                byte, text[position + 1], text[position + 2]
            ) > 0:
                break
            value = _with_letter(value, byte)
            position += 1
        key = _key(value)
        slot = key & mask
        while slots[slot, 1] >= 0 and slots[slot, 0] != key:
            slot = (slot + 1) & mask
        number = slots[slot, 1]
        if number < 0:
            length = position - start
            if 2 * size == len(slots) or starts[size] + length > len(letters):
                return start, num_found, size
            number = size
            for i in range(length):
                letters[starts[size] + i] = text[start + i]
            starts[size + 1] = starts[size] + length
            slots[slot, 0], slots[slot, 1] = key, size
            size += 1
        found[num_found] = number
        num_found += 1
    return position, num_found, size


@compiled
def _refill(old: Numbers, new: Numbers) -> None:
    mask = len(new) - 1
    for i in range(len(old)):
        if old[i, 1] >= 0:
            slot = old[i, 0] & mask
            while new[slot, 1] >= 0:
                slot = (slot + 1) & mask
            new[slot, 0], new[slot, 1] = old[i, 0], old[i, 1]


@compiled
def _find(
    slots: Numbers, letters: Bytes, starts: Numbers, first: int, end: int, unknown: int,
    ids: NDArray[np.int32],
) -> None:  # fmt: skip
    """Look stretches up in a table whose numbers are one more than ids."""
    mask = len(slots) - 1
    for number in range(first, end):
        value = _NO_LETTERS
        for i in range(starts[number], starts[number + 1]):
            value = _with_letter(value, letters[i])
        key = _key(value)
        slot = key & mask
        while slots[slot, 1] >= 0 and slots[slot, 0] != key:
            slot = (slot + 1) & mask
        ids[number] = slots[slot, 1] - 1 if slots[slot, 1] >= 0 else unknown


@compiled
def _read_keys(slots: Numbers, keys: Numbers) -> None:
    for i in range(len(slots)):
        if slots[i, 1] >= 0:
            keys[slots[i, 1]] = slots[i, 0]


@compiled
def _part_of(key: Scalar, parts: Scalar) -> Scalar:
    """Return a part by bits of the hash other than those that choose a slot."""
    bits = np.uint64(24)  # multiplying is faster than dividing
    return np.int64(((np.uint64(key) >> np.uint64(40)) * np.uint64(parts)) >> bits)


@compiled
def _count_shares(keys: Numbers, sizes: Numbers) -> None:
    for number in range(1, len(keys)):  # 0 is the line end
        sizes[_part_of(keys[number], len(sizes))] += 1


@compiled
def _merge(
    keys: Numbers, part: int, parts: int, starts: Numbers, slots: Numbers, size: Scalar,
    new: NDArray[np.int32], index: NDArray[np.int32],
) -> tuple[Scalar, Scalar]:  # fmt: skip
    """Number the stretches of a table in a part; list those that are new, and count their bytes."""
    mask, num_letters = len(slots) - 1, np.int64(0)
    for number in range(1, len(keys)):
        key = keys[number]
        if _part_of(key, parts) != part:
            continue
        slot = key & mask
        while slots[slot, 1] >= 0 and slots[slot, 0] != key:
            slot = (slot + 1) & mask
        if slots[slot, 1] < 0:
            slots[slot, 0], slots[slot, 1] = key, size
            new[size] = number
            num_letters += starts[number + 1] - starts[number]
            size += 1
        index[number] = slots[slot, 1]
    return size, num_letters


@compiled
def _gather(
    letters: Bytes, starts: Numbers, numbers: NDArray[np.int32], whole: Bytes, new_starts: Numbers,
    at: Scalar,
) -> Scalar:  # fmt: skip
    """Copy stretches to their place among all; return where they end."""
    for i in range(len(numbers)):
        new_starts[i] = at
        for place in range(starts[numbers[i]], starts[numbers[i] + 1]):
            whole[at] = letters[place]
            at += 1
    return at


@compiled
def _shift(keys: Numbers, first: Numbers, index: NDArray[np.int32]) -> None:
    """Turn numbers within a part into numbers among all."""
    for number in range(1, len(index)):
        index[number] += first[_part_of(keys[number], len(first))]
