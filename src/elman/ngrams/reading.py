"""Read text files into token ids in one pass, for word vocabularies.

A word tokenizer needs its vocabulary before it can encode, which takes two passes over the text.
Here each distinct stretch (a string between white space) is numbered when it first appears. The
vocabulary is built from the counts of the stretches, and each distinct stretch is encoded once at
the end. The ids are those that the tokenizer gives to the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from queue import Queue

import numpy as np
from numpy.typing import NDArray

from elman.base.memory import resident_bytes
from elman.base.threads import default_threads, in_order, in_threads
from elman.ngrams import vocabulary
from elman.ngrams.compiled import compiled
from elman.ngrams.scratch import Scratch
from elman.ngrams.stretch_table import FEW, LINE_END, Numbers, Table, is_text, join
from elman.ngrams.vocabulary import Spellings
from elman.text.sources import BLOCK_SIZE, Block, corpus_readers
from elman.tokens import words
from elman.tokens.counting import most_frequent, split_counts
from elman.tokens.kind import BOUNDARY, UNKNOWN, lower
from elman.tokens.tokenizer import Tokenizer
from elman.tokens.word_table import TableBackend

_ENCODED_AT_ONCE = 1 << 16
_STRETCH = 1 << 20
"""Numbers in one thread's piece of work."""
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
    free: Queue[Table] = Queue()
    tables = [Table() for _ in range(num_threads)]
    for table in tables:
        free.put(table)

    def number(read: Callable[[], Block]) -> tuple[Table, NDArray[np.int32], int]:
        block = read()
        data = np.frombuffer(block.data, np.uint8)
        if lowercase or not is_text(data):
            text = block.text  # raises an error if not UTF-8
            data = np.frombuffer(lower(text).encode() if lowercase else block.data, np.uint8)
        table = free.get()
        try:
            return table, table.numbers(data), len(block.data)
        finally:
            free.put(table)

    num_bytes = 0
    owners: list[tuple[Table, int]] = []  # table and number of stretches of each block
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
    for table in tables:
        table.forget_room()
    if scratch is not None and path is not None and owners:
        numbers: NDArray[np.int32] = scratch.open(path)
    elif num_threads == 1:
        numbers = np.concatenate([np.empty(0, np.int32), *parts])
    else:
        numbers = np.empty(sum(map(len, parts)), np.int32)
    if num_threads == 1:
        return Stretches(numbers, tables[0].spellings(), num_bytes, scratch)
    spellings, index = join(tables, num_threads)
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
        index = Table()
        lines = np.frombuffer(table.words, np.uint8)
        numbers = index.numbers(lines)
        index.forget_room()
        # One stretch on each line, unless words of another program have spaces.
        expected = np.zeros(2 * len(table), np.int32)
        expected[::2] = np.arange(1, len(table) + 1)
        table.index = index if np.array_equal(numbers, expected) else False
    if not isinstance(table.index, Table):
        return None
    index = table.index
    ids = np.empty(len(stretches), np.int32)

    def find(first: int) -> None:
        end = min(first + FEW, len(stretches))
        index.find(stretches, first, end, tokenizer.unknown_id, ids)

    in_threads(find, range(0, len(stretches), FEW))
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
