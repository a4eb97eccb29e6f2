"""A trie of counts: every n-gram of a text, sorted, with how often it occurs.

Level k holds the k-grams in the order of their ids, so that the continuations of one k-gram stand
side by side in level k + 1: from `first_child[i]` to before `first_child[i + 1]`. Level 1 has one
entry for every id of the vocabulary, seen or not.

The boundary token plays two parts. At the front of an n-gram it is the beginning of a line (KenLM's
`<s>`), at the end it is its end (`</s>`), and it never stands in between: a context reaches back to
the beginning of its line and no further. In level 1 its count is that of `</s>`.

`suffix[i]` leads from the k-gram w1 ... wk to the (k-1)-gram w2 ... wk: the same event after the
shorter context that smoothing falls back on. Every n-gram of a text has one, and these links are
all that is needed to count left contexts, to interpolate and to back off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elman.ngrams.compiled import compiled, in_threads

Array = NDArray[np.int32]


def _none() -> Array:
    return np.empty(0, np.int32)


@dataclass
class Level:
    """All n-grams of one length."""

    words: Array
    """The last token of each n-gram."""
    counts: Array
    """How often each n-gram occurs."""
    suffix: Array = field(default_factory=_none)
    """The index, in the level before, of each n-gram without its first token; none in level 1."""
    first_child: Array = field(default_factory=_none)
    """Where the continuations of each n-gram begin in the next level, and at the end the number of
    all of them; none in the last level."""

    def __len__(self) -> int:
        return len(self.words)


@dataclass
class CountTrie:
    """The n-grams of a text up to some order."""

    levels: list[Level]
    boundary_id: int
    room: Callable[..., NDArray[Any]] = np.empty
    """Where arrays of the trie's size come from, given a size and a type: memory, or a disk."""

    @property
    def order(self) -> int:
        """The length of the longest n-grams."""
        return len(self.levels)

    @property
    def vocab_size(self) -> int:
        """The number of token ids."""
        return len(self.levels[0])

    def line_starts(self, length: int) -> tuple[int, int]:
        """Where, among the n-grams of that length, those that begin a line stand."""
        low, high = self.boundary_id, self.boundary_id + 1
        for level in self.levels[: length - 1]:
            low, high = int(level.first_child[low]), int(level.first_child[high])
        return low, high

    def index(self, tokens: Sequence[int]) -> int:
        """Where an n-gram that occurs stands in the level of its length."""
        node = int(tokens[0])
        for parents, children, token in zip(self.levels, self.levels[1:], tokens[1:], strict=False):
            first, end = parents.first_child[node : node + 2]
            node = int(first + np.searchsorted(children.words[first:end], token))
        return node


def link(trie: CountTrie, num_threads: int | None = None) -> None:
    """Find the suffix links of a trie that has none.

    A link is one of the continuations of the parent's link. Both lists are sorted, so the search
    for one child goes on where its neighbour's ended.
    """
    for length, level in enumerate(trie.levels[1:], start=2):
        if length == 2:
            level.suffix = level.words
            continue
        level.suffix = trie.room(len(level), np.int32)
        parents, shorter = trie.levels[length - 2], trie.levels[length - 3]
        links = parents.suffix, level.words, shorter.first_child, parents.words, level.suffix

        def search(span: tuple[int, int], parents: Level = parents, links: Any = links) -> None:
            _link(*span, parents.first_child, *links)

        in_threads(search, spans(parents.first_child), num_threads)


def spans(first_child: Array, size: int = 1 << 17) -> Iterator[tuple[int, int]]:
    """Ranges of parents that have about `size` children together: pieces of work for threads."""
    num_parents, num_children = len(first_child) - 1, int(first_child[-1])
    start = 0
    for goal in range(size, num_children, size):
        # The goal in the type of the array: NumPy would otherwise convert all of the array.
        end = int(np.searchsorted(first_child, first_child.dtype.type(goal)))
        if end > start:
            yield start, end
            start = end
    if start < num_parents:
        yield start, num_parents


@compiled
def _link(
    start: int,
    end: int,
    first_child: Array,
    parent_suffix: Array,
    words: Array,
    shorter_first_child: Array,
    shorter_children: Array,
    suffix: Array,
) -> None:
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
