"""Modified Kneser-Ney smoothing: adjusted counts, and the discounts of Chen and Goodman (1998).

The estimates equal those of KenLM's lmplz, down to one peculiarity. lmplz takes each n-gram's
adjusted count when it tallies how many n-grams have a count of 1, 2, 3 and 4, but of the last
n-gram of each order it takes the plain count (AdjustCounts::Run, after the loop). On the Penn
Treebank that moves the probabilities of the rarest words by 1e-3. `Last` is that n-gram.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elman.ngrams.compiled import compiled, in_threads
from elman.ngrams.counting import Ids
from elman.ngrams.trie import Array, CountTrie

Discounts = tuple[float, float, float]
Last = Sequence[int]


def adjusted_counts(trie: CountTrie, num_threads: int | None = None) -> list[Array]:
    """For each level, in how many left contexts its n-grams were seen.

    The longest n-grams keep their counts, and so do those that begin a line: nothing can stand
    before them.
    """

    def adjust(length: int) -> Array:
        level, longer = trie.levels[length - 1], trie.levels[length]
        counts = trie.room(len(level), np.int32)
        counts[:] = 0
        _count_links(longer.suffix, counts)
        if length > 1:
            first, end = trie.line_starts(length)
            counts[first:end] = level.counts[first:end]
        return counts

    adjusted = in_threads(adjust, range(1, trie.order), num_threads)
    return [*adjusted, trie.levels[-1].counts]


def counts_of_counts(counts: Array, limit: int) -> list[int]:
    """How many n-grams have a count of 0, of 1, ... of `limit`."""
    found = np.zeros(limit + 1, np.int64)
    _tally(counts, found)
    numbers: list[int] = found.tolist()
    return numbers


def kneser_ney_discounts(
    trie: CountTrie, adjusted: Sequence[Array], last: Last = ()
) -> list[Discounts | None]:
    """For each order, what to take from counts of 1, of 2, and of 3 or more.

    None where the formula has no answer: where no n-gram has a count of 1, of 2 or of 3, and where
    the counts are so odd that a discount would be negative or more than there is.
    """
    found = []
    for length, (level, counts) in enumerate(zip(trie.levels, adjusted, strict=True), start=1):
        occurring = counts_of_counts(counts, 4)
        if length < trie.order and length <= len(last):
            index = trie.index(last[-length:])
            for number, change in ((counts[index], -1), (level.counts[index], 1)):
                if number < len(occurring):
                    occurring[number] += change
        found.append(_discounts(*occurring[1:]))
    return found


def _discounts(n1: int, n2: int, n3: int, n4: int) -> Discounts | None:
    """Equation 26 of Chen and Goodman."""
    if not (n1 and n2 and n3):
        return None
    y = n1 / (n1 + 2 * n2)
    found = 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3
    valid = all(0 <= discount <= i for i, discount in enumerate(found, start=1))
    return found if valid else None


def last_ngram(ids: Ids, order: int, *, vocab_size: int, boundary_id: int) -> list[int]:
    """The n-gram that lmplz meets last.

    It sorts n-grams by their last token, then by the one before, and so on; tokens rank by their
    first appearance in the text, line ends before all of them and line starts before those.
    """
    rank = np.full(vocab_size + 1, -3, np.int64)
    _rank(ids, rank)
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


def _places(ids: Ids, token: int) -> NDArray[Any]:
    stretch = 1 << 22  # bounds the memory of the comparison
    parts = [start + np.flatnonzero(ids[start : start + stretch] == token)
             for start in range(0, len(ids), stretch)]  # fmt: skip
    return np.concatenate(parts) if parts else np.arange(0)


@compiled
def _count_links(suffix: Array, counts: Array) -> None:
    for link in suffix:
        counts[link] += 1


@compiled
def _tally(counts: Array, found: NDArray[np.int64]) -> None:
    for count in counts:
        if count < len(found):
            found[count] += 1


@compiled
def _rank(ids: Ids, rank: NDArray[np.int64]) -> None:
    for position in range(len(ids)):
        if rank[ids[position]] < 0:
            rank[ids[position]] = position
