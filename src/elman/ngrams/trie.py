"""A trie of counts: every n-gram of a text, sorted, with its count.

Level k holds the k-grams sorted by their ids, so the continuations of k-gram i are contiguous in
level k + 1: `first_child[i]` up to, not including, `first_child[i + 1]`. Level 1 has one entry for
every id of the vocabulary, seen or not.

The boundary token has two roles: first in an n-gram it begins a line (KenLM's `<s>`), last it ends
one (`</s>`). It is never in the middle, because contexts stop at the beginning of their line. Its
count in level 1 is that of `</s>`.

`suffix[i]` links the k-gram w1 ... wk to the (k-1)-gram w2 ... wk: the same event after the shorter
context that smoothing falls back on. Every n-gram of a text has this link; counting left contexts,
interpolating and backing off need nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from elman.base.errors import ElmanError
from elman.base.threads import default_threads, in_threads
from elman.ngrams.compiled import compiled

Array = NDArray[np.int32]
_EMPTY = np.empty(0, np.int32)


@dataclass
class Level:
    """All n-grams of one length."""

    words: Array
    """The last token of each n-gram."""
    counts: Array
    suffix: Array = field(default_factory=lambda: _EMPTY)
    """Index in the previous level of each n-gram without its first token; empty in level 1."""
    first_child: Array = field(default_factory=lambda: _EMPTY)
    """(n-grams + 1,) index in the next level of each n-gram's first continuation; empty in the last
    level."""

    def __len__(self) -> int:
        return len(self.words)


class Room:
    """Where the arrays of a trie are: here in memory, in `Scratch` on disk."""

    piece = 1 << 17
    """Most n-grams in one thread's piece of work."""
    least = 1 << 13
    """N-grams that take longer than to begin a piece of work."""

    def share(self, size: int, num_threads: int | None) -> int:
        """Return how many n-grams are a piece of work: several pieces for each thread, so that all
        end at about the same time."""
        pieces = 8 * (num_threads or default_threads())
        return min(self.piece, max(self.least, size // pieces))

    def empty(self, size: int, dtype: DTypeLike = np.int32) -> NDArray[Any]:
        return np.empty(size, dtype)

    def relieve(self) -> None:
        """Called after each piece of work: keep to a limit of memory."""


MEMORY = Room()


@dataclass
class CountTrie:
    levels: list[Level]
    boundary_id: int
    room: Room = MEMORY
    """Has the arrays that smoothing adds."""

    @property
    def order(self) -> int:
        return len(self.levels)

    @property
    def vocab_size(self) -> int:
        return len(self.levels[0])

    def line_starts(self, length: int) -> tuple[int, int]:
        """Return the range of the n-grams of that length that begin a line."""
        low, high = self.boundary_id, self.boundary_id + 1
        for level in self.levels[: length - 1]:
            low, high = int(level.first_child[low]), int(level.first_child[high])
        return low, high

    def index(self, tokens: Sequence[int]) -> int:
        """Return the index, in the level of its length, of an n-gram that occurs."""
        node = int(tokens[0])
        for parents, children, token in zip(self.levels, self.levels[1:], tokens[1:], strict=False):
            first, end = parents.first_child[node : node + 2]
            node = int(first + np.searchsorted(children.words[first:end], token))
        return node


def link(trie: CountTrie, num_threads: int | None = None) -> None:
    """Compute the suffix links of a trie.

    A link is among the continuations of the parent's link. Both lists are sorted, so the search for
    a child starts where its left neighbour's ended.
    """
    for length, level in enumerate(trie.levels[1:], start=2):
        if length == 2:
            level.suffix = level.words
            continue
        level.suffix = trie.room.empty(len(level))
        parents, shorter = trie.levels[length - 2], trie.levels[length - 3]
        links = parents.suffix, level.words, shorter.first_child, parents.words, level.suffix

        def search(span: tuple[int, int], parents: Level = parents, links: Any = links) -> None:
            _link(*span, parents.first_child, *links)
            trie.room.relieve()

        in_threads(search, spans(parents.first_child, trie.room.piece), num_threads)


def check_number(num_ngrams: int) -> None:
    """Check that the n-grams can be numbered: indices are 32-bit integers."""
    if num_ngrams >= 2**31:
        raise ElmanError(
            f"Too many n-grams: {num_ngrams:,} (limit 2,147,483,647).",
            "lower the order, or prune rare n-grams (0,0,1 drops trigrams that occur once)",
        )


def spans(first_child: Array, size: int = Room.piece) -> Iterator[tuple[int, int]]:
    """Split the parents into ranges of about `size` children each, as work for threads."""
    num_parents, num_children = len(first_child) - 1, int(first_child[-1])
    start = 0
    for goal in range(size, num_children, size):
        # Use the array's dtype: otherwise NumPy converts the whole array.
        end = int(np.searchsorted(first_child, first_child.dtype.type(goal)))
        if end > start:
            yield start, end
            start = end
    if start < num_parents:
        yield start, num_parents


@compiled
def _link(
    start: int, end: int, first_child: Array, parent_suffix: Array, words: Array,
    shorter_first_child: Array, shorter_children: Array, suffix: Array,
) -> None:  # fmt: skip
    for parent in range(start, end):
        low = shorter_first_child[parent_suffix[parent]]
        last = shorter_first_child[parent_suffix[parent] + 1]
        for child in range(first_child[parent], first_child[parent + 1]):
            word = words[child]
            # Gallop: double the stride until past the word, then halve it.
            stride = 1
            while low + stride < last and shorter_children[low + stride] <= word:
                low += stride
                stride *= 2
            while stride > 0:
                if low + stride < last and shorter_children[low + stride] <= word:
                    low += stride
                stride //= 2
            suffix[child] = low
