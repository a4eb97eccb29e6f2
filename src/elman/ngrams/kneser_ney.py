"""Modified Kneser-Ney smoothing: adjusted counts, and the discounts of Chen and Goodman (1998).

The estimates equal those of KenLM's lmplz, including one quirk: when lmplz tallies how many n-grams
have an adjusted count of 1, 2, 3 and 4, it uses the plain count for the last n-gram of each order
(AdjustCounts::Run, after the loop). On the Penn Treebank this changes the probabilities of the
rarest words by 1e-3. `last_ngram` finds the longest of these n-grams; the others are its ends, and
`last_counts` has their plain counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elman.base.threads import default_threads, in_threads
from elman.ngrams.compiled import Scalar, compiled, inlined
from elman.ngrams.counting import Ids
from elman.ngrams.trie import MEMORY, Array, CountTrie, Level, Room

Discounts = tuple[float, float, float]
_STRETCH = 1 << 20
"""Tokens looked at at a time, which bounds the memory."""
_FEW = 32
"""N-grams that are looked at one by one."""


def adjusted_counts(
    trie: CountTrie, num_threads: int | None = None, *, overwrite: bool = False
) -> list[Array]:
    """Count, for each level, the distinct tokens seen before each n-gram.

    The longest n-grams and those that begin a line keep their plain counts. `overwrite` puts the
    result in the place of the counts.
    """

    room, adjusted = trie.room, []
    # Where the n-grams of each first token begin, and end with one more.
    blocks = np.arange(trie.vocab_size + 1, dtype=np.int32)
    for length in range(1, trie.order):
        level, suffix = trie.levels[length - 1], trie.levels[length].suffix
        blocks = level.first_child[blocks]
        counts = level.counts if overwrite else room.empty(len(level))

        def adjust(
            span: tuple[int, int],
            level: Level = level,
            counts: Array = counts,
            suffix: Array = suffix,
            blocks: Array = blocks,
            starts: tuple[int, int] = trie.line_starts(length) if length > 1 else (0, 0),
        ) -> None:
            # Every thread counts the links to its span: nobody else writes there.
            first, end = span
            kept = slice(max(first, starts[0]), min(end, starts[1]))
            plain = level.counts[kept].copy()
            counts[first:end] = 0
            block = 0
            while block < len(blocks) - 1:
                block = _count_links(suffix, blocks, block, 8 * room.piece, first, end, counts)
                room.relieve()
            counts[kept] = plain

        number = min(num_threads or default_threads(), 1 + len(level) // room.piece)
        cuts = np.linspace(0, len(level), number + 1).astype(np.int64).tolist()
        in_threads(adjust, pairwise(cuts), num_threads)
        adjusted.append(counts)
    return [*adjusted, trie.levels[-1].counts]


def counts_of_counts(
    counts: Array, limit: int, num_threads: int | None = None, room: Room = MEMORY
) -> list[int]:
    """Return the number of n-grams with a count of 0, 1, ... `limit`."""

    size = room.share(len(counts), num_threads)

    def tally(start: int) -> NDArray[np.int64]:
        found = np.zeros(limit + 1, np.int64)
        _tally(counts[start : start + size], found)
        room.relieve()
        return found

    parts = in_threads(tally, range(0, len(counts), size), num_threads)
    numbers: list[int] = sum(parts, np.zeros(limit + 1, np.int64)).tolist()
    return numbers


def kneser_ney_discounts(
    trie: CountTrie,
    adjusted: Sequence[Array],
    last: Sequence[tuple[int, int]] = (),
    num_threads: int | None = None,
) -> list[Discounts | None]:
    """Return for each order the discounts of counts of 1, of 2, and of 3 or more; `last` are the
    `last_counts`.

    None if the formula is undefined (no n-gram has a count of 1, of 2 or of 3), or if a discount
    would be negative or larger than the count.
    """
    found = []
    for counts, exception in zip_longest(adjusted, last):
        occurring = counts_of_counts(counts, 4, num_threads, trie.room)
        if exception is not None:
            index, plain = exception
            for number, change in ((counts[index], -1), (plain, 1)):
                if number < len(occurring):
                    occurring[number] += change
        found.append(_discounts(*occurring[1:]))
    return found


def _discounts(n1: int, n2: int, n3: int, n4: int) -> Discounts | None:
    """Apply equation 26 of Chen and Goodman."""
    if not (n1 and n2 and n3):
        return None
    y = n1 / (n1 + 2 * n2)
    found = 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3
    valid = all(0 <= discount <= i for i, discount in enumerate(found, start=1))
    return found if valid else None


def last_ngram(
    ids: Ids, order: int, *, vocab_size: int, boundary_id: int, room: Room = MEMORY
) -> list[int]:
    """Return the n-gram that lmplz processes last.

    lmplz sorts n-grams by their last token, then by the one before, and so on. Tokens rank by their
    first occurrence in the text; line ends rank below all tokens, line starts below line ends.
    """
    rank = np.full(vocab_size + 1, -3, np.int64)
    for start in range(0, len(ids), _STRETCH):
        _rank(ids[start : start + _STRETCH], start, rank)
        room.relieve()
    rank[boundary_id], line_start = -1, vocab_size
    rank[line_start] = -2
    last: list[int] = []
    ends: NDArray[Any] = np.arange(0)
    for distance in range(order):
        if distance == 0:
            token = int(np.argmax(rank[:vocab_size]))
            ends = _places(ids, token)
        else:
            tokens = np.where(ends >= distance, ids[ends - distance].astype(np.int64), boundary_id)
            tokens[tokens == boundary_id] = line_start
            token = int(tokens[np.argmax(rank[tokens])])
            ends = ends[tokens == token]
        if len(ends) == 0 or token == line_start:
            return [boundary_id, *last] if len(ends) else last
        last.insert(0, token)
    return last


def last_counts(trie: CountTrie, last: Sequence[int]) -> list[tuple[int, int]]:
    """Return, for each length but the longest, the index and count of the n-gram that lmplz
    processes last; no more of them than `last` has tokens."""
    found = []
    for length in range(1, min(trie.order, 1 + len(last))):
        index = trie.index(last[-length:])
        found.append((index, int(trie.levels[length - 1].counts[index])))
    return found


def _places(ids: Ids, token: int) -> NDArray[Any]:
    parts = [start + np.flatnonzero(ids[start : start + _STRETCH] == token)
             for start in range(0, len(ids), _STRETCH)]  # fmt: skip
    return np.concatenate(parts) if parts else np.arange(0)


@inlined
def _first_from(ascending: Array, low: Scalar, high: Scalar, least: Scalar) -> Scalar:
    """Return the first place from `low` up to `high` whose number is `least` or more."""
    while low < high:
        middle = low + (high - low) // 2
        if ascending[middle] < least:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def _count_links(
    suffix: Array, blocks: Array, block: Scalar, size: int, first: int, end: int, counts: Array
) -> Scalar:
    """Count the links to `first` up to `end` of the n-grams with the next first tokens, about
    `size` of them; return the token to go on with.

    Links of n-grams with one first token ascend: of many, those to a range are found by halving.
    """
    stop, begin = blocks[block] + size, blocks[block]  # from `begin` on, they are still to count
    whole = first == 0 and end == len(counts)
    while block < len(blocks) - 1 and blocks[block] < stop:
        at, last = blocks[block], blocks[block + 1]
        block += 1
        if whole or last - at <= _FEW:
            continue
        for i in range(begin, at):
            link = suffix[i]
            if first <= link < end:
                counts[link] += 1
        begin = last
        start = _first_from(suffix, at, last, first)
        for i in range(start, _first_from(suffix, start, last, end)):
            counts[suffix[i]] += 1
    for i in range(begin, blocks[block]):
        link = suffix[i]
        if first <= link < end:
            counts[link] += 1
    return block


@compiled
def _tally(counts: Array, found: NDArray[np.int64]) -> None:
    for count in counts:
        if count < len(found):
            found[count] += 1


@compiled
def _rank(ids: Ids, start: int, rank: NDArray[np.int64]) -> None:
    for position in range(len(ids)):
        if rank[ids[position]] < 0:
            rank[ids[position]] = start + position
