"""Counting a text larger than memory: shards are counted one by one, then merged.

A shard is a stretch of the text; it counts the n-grams that begin in it. Its trie goes to disk.
Merging goes through all tries at once, by ranges of first tokens: the n-grams that begin with a
range of tokens are one stretch in every level of every trie, and sorting them together gives the
same stretch of the whole. The result is the very trie that counting in one piece gives, so whatever
is computed from it is the same to the last bit.

The counting of one shard needs nothing but its stretch of the text, and merging nothing but sorted
tries: a cluster could do the first part anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from elman.base.errors import UsageError
from elman.ngrams.counting import Ids, count_starts
from elman.ngrams.scratch import Scratch
from elman.ngrams.trie import CountTrie, Level, link

SMALLEST_MEMORY = 64 << 20
"""Less than this, beyond what Python takes, leaves no room for work."""


def bytes_per_token(order: int) -> int:
    """About how much memory counting and smoothing a token takes, all in memory."""
    return 30 + 16 * (order - 1)


def count_within(
    ids: Ids,
    order: int,
    scratch: Scratch,
    memory: int,
    *,
    vocab_size: int,
    boundary_id: int,
    num_threads: int | None = None,
) -> CountTrie:
    """All n-grams of `ids`, as `count` finds them, in about `memory` bytes; arrays are on disk."""
    if memory < SMALLEST_MEMORY:
        raise UsageError(
            f"{memory >> 20} MiB of memory are too few to count in",
            f"give {SMALLEST_MEMORY >> 20} MiB or more",
        )
    shard_size = memory // (2 * bytes_per_token(order))
    tries = [
        _store(trie, scratch)
        for trie in shards(ids, order, shard_size, vocab_size, boundary_id, num_threads)
    ]
    # A merged n-gram passes through some 100 bytes of arrays, at each level in turn.
    trie = merge(tries, scratch, max_ngrams=memory // 200)
    trie.room = scratch.empty
    link(trie, num_threads)
    return trie


def shards(
    ids: Ids,
    order: int,
    shard_size: int,
    vocab_size: int,
    boundary_id: int,
    num_threads: int | None = None,
) -> Iterator[CountTrie]:
    """The counts of stretches of a text, `shard_size` tokens each, without suffix links."""
    for start in range(0, max(1, len(ids)), shard_size):
        end = min(start + shard_size, len(ids))
        stretch = np.asarray(ids[start : end + order - 1])
        if start == 0:
            stretch = np.concatenate([np.array([boundary_id], stretch.dtype), stretch])
        num_starts = end - start + (start == 0)
        trie = count_starts(
            stretch, num_starts, order,
            vocab_size=vocab_size, boundary_id=boundary_id, num_threads=num_threads,
        )  # fmt: skip
        if start == 0:
            trie.levels[0].counts[boundary_id] -= 1
        yield trie


def merge(tries: Sequence[CountTrie], scratch: Scratch, max_ngrams: int = 1 << 22) -> CountTrie:
    """One trie with the counts of all, on disk; at most about `max_ngrams` in work at a time."""
    order, vocab_size = tries[0].order, tries[0].vocab_size
    writers = [_Writer(scratch) for _ in range(order)]
    for start, end in _ranges(tries, max_ngrams):
        _merge_range(tries, start, end, writers)
    levels = [writer.level(scratch, last=i == order - 1) for i, writer in enumerate(writers)]
    assert len(levels[0]) == vocab_size
    return CountTrie(levels, tries[0].boundary_id)


def _ranges(tries: Sequence[CountTrie], max_ngrams: int) -> Iterator[tuple[int, int]]:
    """Ranges of first tokens that begin few enough n-grams, or a single token each."""
    size_V = np.ones(tries[0].vocab_size + 1, np.int64)
    most_V = np.zeros_like(size_V)
    for trie in tries:
        bounds = np.arange(trie.vocab_size + 1)
        for level in trie.levels[:-1]:
            bounds = level.first_child[bounds].astype(np.int64)
            most_V[:-1] = np.maximum(most_V[:-1], np.diff(bounds))
    # The largest level of each trie, for as many tries as there are.
    size_V[:-1] += most_V[:-1] * len(tries)
    start, filled = 0, 0
    for token, size in enumerate(size_V[:-1].tolist()):
        if filled + size > max_ngrams and token > start:
            yield start, token
            start, filled = token, 0
        filled += size
    yield start, len(size_V) - 1


def _merge_range(
    tries: Sequence[CountTrie], start: int, end: int, writers: Sequence[_Writer]
) -> None:
    """Merge the n-grams whose first token lies in a range."""
    stretches = [(start, end) for _ in tries]
    merged = [np.arange(end - start) for _ in tries]  # the merged index of each trie's n-grams
    counts = sum(trie.levels[0].counts[start:end].astype(np.int64) for trie in tries)
    writers[0].write(np.arange(start, end), np.asarray(counts))
    num_parents = end - start
    for length in range(2, len(writers) + 1):
        keys, numbers, below = [], [], []
        for trie, (first, last), index in zip(tries, stretches, merged, strict=True):
            children = trie.levels[length - 2].first_child[first : last + 1]
            low, high = int(children[0]), int(children[-1])
            level = trie.levels[length - 1]
            parents = np.repeat(index, np.diff(children))
            keys.append((parents << 32) | level.words[low:high])
            numbers.append(level.counts[low:high])
            below.append((low, high))
        together = np.concatenate(keys)
        # Each trie's keys are sorted already: a stable sort only merges them.
        order = np.argsort(together, kind="stable")
        together = together[order]
        new = np.ones(len(together), np.bool_)
        new[1:] = together[1:] != together[:-1]
        firsts = np.flatnonzero(new)
        index_of = np.empty(len(together), np.int64)
        index_of[order] = np.cumsum(new) - 1
        found = together[firsts]
        sums = np.add.reduceat(np.concatenate(numbers)[order], firsts) if len(firsts) else firsts
        writers[length - 2].write_children(np.bincount(found >> 32, minlength=num_parents))
        writers[length - 1].write(found & 0xFFFFFFFF, sums)
        sizes = np.cumsum([len(part) for part in keys])[:-1]
        merged = np.split(index_of, sizes)
        stretches = below
        num_parents = len(found)


class _Writer:
    """One level on its way to disk."""

    def __init__(self, scratch: Scratch) -> None:
        self._paths = [scratch.path() for _ in range(3)]
        self._files = [path.open("wb") for path in self._paths]
        self._num_children = 0

    def write(self, words: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        """Add n-grams."""
        self._files[0].write(words.astype(np.int32).data)
        self._files[1].write(counts.astype(np.int32).data)

    def write_children(self, num_children: NDArray[np.int64]) -> None:
        """Say how many continuations the n-grams last added have."""
        first_child = self._num_children + np.cumsum(num_children) - num_children
        self._files[2].write(first_child.astype(np.int32).data)
        self._num_children += int(num_children.sum())

    def level(self, scratch: Scratch, *, last: bool) -> Level:
        """All that was written."""
        if not last:
            self._files[2].write(np.array([self._num_children], np.int32).data)
        for file in self._files:
            file.close()
        words, counts, first_child = (scratch.open(path) for path in self._paths)
        return Level(words, counts, first_child=first_child)


def _store(trie: CountTrie, scratch: Scratch) -> CountTrie:
    """The same trie with its arrays on disk."""
    arrays = scratch.put(
        [part for level in trie.levels for part in (level.words, level.counts, level.first_child)]
    )
    levels = [
        Level(words, counts, first_child=first_child)
        for words, counts, first_child in zip(*[iter(arrays)] * 3, strict=True)
    ]
    return CountTrie(levels, trie.boundary_id)
