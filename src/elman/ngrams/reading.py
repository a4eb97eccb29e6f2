"""Read text files into token ids in one pass, for word vocabularies.

A word tokenizer needs its vocabulary before it can encode, which takes two passes over the text.
Here each distinct stretch (a string between white space) is numbered when it first appears. The
vocabulary is built from the counts of the stretches, and each distinct stretch is encoded once at
the end. The ids are those that the tokenizer gives to the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from queue import Queue

import numpy as np
from numpy.typing import NDArray

from elman.base.memory import resident_bytes
from elman.base.threads import default_threads, in_order, in_threads
from elman.ngrams import vocabulary
from elman.ngrams.compiled import Scalar, compiled
from elman.ngrams.scratch import Scratch
from elman.ngrams.vocabulary import Spellings
from elman.text.sources import BLOCK_SIZE, Block, corpus_readers
from elman.tokens import words
from elman.tokens.counting import most_frequent, split_counts
from elman.tokens.kind import BOUNDARY, UNKNOWN, lower
from elman.tokens.tokenizer import Tokenizer
from elman.tokens.word_table import TableBackend

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]

LINE_END = 0
"""The number of a line end; stretches are numbered from 1."""
_ENCODED_AT_ONCE = 1 << 16
_STRETCH = 1 << 20
"""Numbers in one thread's piece of work."""
_FEW = 1 << 12
"""Stretches that one thread joins as fast as many."""
_BLOCK, _SMALL_BLOCK = 1 << 20, 1 << 19
"""Most bytes of text that are read at a time; where memory is limited."""
_LEAST_BLOCK = 1 << 17
"""Bytes that take longer to read than to begin a block."""


@dataclass
class Stretches:
    """A text as the numbers of its stretches."""

    numbers: NDArray[np.int32]
    """(stretches and line ends,) in text order."""
    letters: Spellings
    """The stretches by number."""
    num_bytes: int
    """Size of the text."""
    scratch: Scratch | None = None
    """Holds long arrays on disk instead of memory."""
    known: tuple[Tokenizer, NDArray[np.int32]] | None = None
    """The tokenizer that was made of the stretches, and the id of each."""

    @cached_property
    def spellings(self) -> list[str]:
        # One by one they would take ten times as long.
        rest = self.letters.lines(np.arange(1, len(self.letters)))
        return ["\n", *rest.tobytes().decode().split("\n")[:-1]]

    def counts(self) -> Numbers:
        """Count the occurrences of each number."""

        def tally(start: int) -> Numbers:
            counts = np.zeros(len(self.letters), np.int64)
            _tally(self.numbers[start : start + size], counts)
            self._relieve()
            return counts

        size = max(_STRETCH, -(-len(self.numbers) // default_threads()))
        size = size if self.scratch is None else _STRETCH
        starts = range(0, len(self.numbers), size)
        counts = np.zeros(len(self.letters), np.int64)
        for some in in_order(tally, starts):
            counts += some
        return counts

    def ids(self, tokenizer: Tokenizer) -> NDArray[np.int32]:
        """Return the token ids of the text under a word tokenizer.

        In memory, a boundary token is before them, in the array that they are a view of: counting
        needs one there.
        """

        def room(size: int) -> NDArray[np.int32]:
            if self.scratch is not None:
                return self.scratch.empty(size, np.int32)
            whole = np.empty(size + 1, np.int32)
            whole[0] = tokenizer.boundary_id
            return whole[1:]

        ids: NDArray[np.int32]
        if tokenizer.kind == "pretokenized":  # each stretch is one token
            if self.known is not None and self.known[0] is tokenizer:
                table = self.known[1]
            elif (found := _found(tokenizer, self.letters)) is not None:
                table = found
            else:
                table = tokenizer.word_ids([BOUNDARY, *self.spellings[1:]])
            ids = room(len(self.numbers))

            def look_up(start: int) -> None:
                some = slice(start, start + _STRETCH)
                _look_up(self.numbers[some], table, ids[some])
                self._relieve()

            in_threads(look_up, range(0, len(ids), _STRETCH))
            return ids
        table, starts, lengths = _encode_each(tokenizer, self.spellings)

        def measure(start: int) -> int:
            return int(_spread_size(self.numbers[start : start + _STRETCH], lengths))

        def spread(number: int) -> None:
            some = self.numbers[number * _STRETCH : (number + 1) * _STRETCH]
            _spread(some, starts, lengths, table, ids[ends[number] : ends[number + 1]])
            self._relieve()

        sizes = in_threads(measure, range(0, len(self.numbers), _STRETCH))
        ends = np.cumsum([0, *sizes]).tolist()
        ids = room(ends[-1])
        in_threads(spread, range(len(sizes)))
        return ids

    def _relieve(self) -> None:
        if self.scratch is not None:
            self.scratch.relieve()


def read_stretches(
    files: Iterable[Path],
    *,
    lowercase: bool = False,
    scratch: Scratch | None = None,
    num_threads: int | None = None,
) -> Stretches:
    """Number the stretches of the files, read as one text."""
    num_threads = num_threads or default_threads()
    free: Queue[_Table] = Queue()
    tables = [_Table() for _ in range(num_threads)]
    for table in tables:
        free.put(table)

    def number(read: Callable[[], Block]) -> tuple[_Table, NDArray[np.int32], int]:
        block = read()
        data = np.frombuffer(block.data, np.uint8)
        if lowercase or not _is_text(data):
            text = block.text  # raises an error if not UTF-8
            data = np.frombuffer(lower(text).encode() if lowercase else block.data, np.uint8)
        # Trailing spaces save the loop a check for the end.
        padded = np.full(len(data) + 3, 32, np.uint8)
        padded[:-3] = data
        table = free.get()
        try:
            return table, table.numbers(padded), len(block.data)
        finally:
            free.put(table)

    num_bytes = 0
    owners: list[tuple[_Table, int]] = []  # table and number of stretches of each block
    parts: list[NDArray[np.int32]] = []
    path = None if scratch is None else scratch.path()
    files = list(files)
    # Several blocks for each thread, so that all end at about the same time.
    total = sum(file.stat().st_size for file in files if file.is_file())
    size = min(_BLOCK, max(_LEAST_BLOCK, total // (4 * num_threads)))
    sizes = (size, BLOCK_SIZE) if scratch is None else (_SMALL_BLOCK, _SMALL_BLOCK)
    blocks = corpus_readers(files, *sizes)
    for table, found, size in in_order(number, blocks, num_threads):
        num_bytes += size
        owners.append((table, len(found)))
        if path is None:
            parts.append(found)
        else:
            with path.open("ab") as file:
                file.write(found.data)
            if scratch is not None and scratch.limit and resident_bytes() > scratch.limit:
                scratch.budget("Python and the words of the text")
    if scratch is not None and path is not None and owners:
        numbers: NDArray[np.int32] = scratch.open(path)
    elif num_threads == 1:
        numbers = np.concatenate([np.empty(0, np.int32), *parts])
    else:
        numbers = np.empty(sum(map(len, parts)), np.int32)
    if num_threads == 1:
        return Stretches(numbers, tables[0].spellings(), num_bytes, scratch)
    spellings, index = _join(tables, num_threads)
    ends = np.cumsum([0, *(size for _, size in owners)]).tolist()

    def renumber(block: int) -> None:
        whole = numbers[ends[block] : ends[block + 1]]
        _look_up(parts[block] if parts else whole, index[id(owners[block][0])], whole)
        if scratch is not None:
            scratch.relieve()

    in_threads(renumber, range(len(owners)), num_threads)
    return Stretches(numbers, spellings, num_bytes, scratch)


def _found(tokenizer: Tokenizer, stretches: Spellings) -> NDArray[np.int32] | None:
    """Look up the ids of stretches in a tokenizer's table of words; None if that has none."""
    if not isinstance(tokenizer.backend, TableBackend) or tokenizer.lowercase:
        return None
    table = tokenizer.backend.table
    if table.index is None:
        index = _Table()
        lines = np.frombuffer(table.words, np.uint8)
        numbers = index.numbers(np.concatenate([lines, np.full(3, 32, np.uint8)]))
        # One stretch on each line, unless words of another program have spaces.
        expected = np.zeros(2 * len(table), np.int32)
        expected[::2] = np.arange(1, len(table) + 1)
        table.index = index if np.array_equal(numbers, expected) else False
    if not isinstance(table.index, _Table):
        return None
    slots = table.index.slots
    ids = np.empty(len(stretches), np.int32)

    def find(first: int) -> None:
        end = min(first + _FEW, len(stretches))
        _find(slots, stretches.letters, stretches.starts, first, end, tokenizer.unknown_id, ids)

    in_threads(find, range(0, len(stretches), _FEW))
    ids[LINE_END] = tokenizer.boundary_id
    return ids


def _encode_each(
    tokenizer: Tokenizer, spellings: list[str]
) -> tuple[NDArray[np.int32], Numbers, Numbers]:
    """Return ids, and the start and length of each stretch's ids among them.

    Stretches are encoded in large batches, joined by line ends; the few that contain a line end or
    `<eos>` are encoded one by one afterwards.
    """
    odd = {i for i, text in enumerate(spellings) if text == "\n" or BOUNDARY in text}
    tables: list[NDArray[np.int32]] = []
    ends: list[Numbers] = [np.array([-1])]
    size = 0
    for first in range(0, len(spellings), _ENCODED_AT_ONCE):
        some = enumerate(spellings[first : first + _ENCODED_AT_ONCE], start=first)
        ids = tokenizer.encode("".join("\n" if i in odd else f"{text}\n" for i, text in some))
        tables.append(ids)
        ends.append(np.flatnonzero(ids == tokenizer.boundary_id) + size)
        size += len(ids)
    end = np.concatenate(ends)
    starts, lengths = end[:-1] + 1, np.diff(end) - 1
    for i in odd:
        tables.append(tokenizer.encode(spellings[i]))
        starts[i], lengths[i] = size, len(tables[-1])
        size += len(tables[-1])
    return np.concatenate(tables), starts, lengths


def _join(
    tables: Sequence[_Table], num_threads: int
) -> tuple[Spellings, dict[int, NDArray[np.int32]]]:
    """Return the stretches of all tables, and for each table (by id) its numbers among them.

    Stretches are divided by their hashes, so that each thread joins those of a part.
    """
    parts = num_threads if sum(table.size for table in tables) > _FEW else 1
    keys = in_threads(_Table.keys, tables, num_threads)
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


def word_tokenizer(
    stretches: Stretches,
    kind: str,
    *,
    vocab_size: int = 0,
    min_count: int = 1,
    lowercase: bool = False,
) -> Tokenizer:
    """Build a tokenizer of the words of a text, by default all of them, most frequent first."""
    limit = max(0, vocab_size - 2) if vocab_size else None
    if kind == "pretokenized":
        found = vocabulary.most_frequent(stretches.letters, stretches.counts(), min_count, limit)
        tokenizer = vocabulary.tokenizer_of(found, lowercase=lowercase)
        stretches.known = tokenizer, found.ids
        return tokenizer
    occurring = zip(stretches.spellings[1:], stretches.counts().tolist()[1:], strict=True)
    counts = split_counts(occurring, words.splitter())
    for special in (BOUNDARY, UNKNOWN):
        counts.pop(special, None)
    return Tokenizer(words.build(most_frequent(counts, min_count)[:limit], lowercase=lowercase))


class _Table:
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

    def numbers(self, text: Bytes) -> NDArray[np.int32]:
        """Number the stretches and line ends of a block."""
        # Upper limit: each byte makes at most one number.
        found = np.empty(len(text), np.int32)
        position, num_found = 0, 0
        while position < len(text) - 2:
            position, num_found, self.size = _scan(
                text, position, self.slots, self.starts, self.letters, self.size, found, num_found
            )
            if position < len(text) - 2:
                self._grow(len(text))
        return found[:num_found].copy()

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
def _is_text(data: Bytes) -> bool:
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
    return np.int64((np.uint64(key) >> np.uint64(40)) % np.uint64(parts))


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


@compiled
def _look_up(
    numbers: NDArray[np.int32], table: NDArray[np.int32], found: NDArray[np.int32]
) -> None:
    for i in range(np.uint64(len(numbers))):
        found[i] = table[np.uint64(numbers[i])]


@compiled
def _tally(numbers: NDArray[np.int32], counts: Numbers) -> None:
    for number in numbers:
        counts[number] += 1


@compiled
def _spread_size(numbers: NDArray[np.int32], lengths: Numbers) -> int:
    size = 0
    for number in numbers:
        size += lengths[number]
    return size


@compiled
def _spread(
    numbers: NDArray[np.int32],
    starts: Numbers,
    lengths: Numbers,
    table: NDArray[np.int32],
    ids: NDArray[np.int32],
) -> None:
    at = 0
    for number in numbers:
        for i in range(lengths[number]):
            ids[at + i] = table[starts[number] + i]
        at += lengths[number]
