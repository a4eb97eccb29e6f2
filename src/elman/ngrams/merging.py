"""Count a text larger than memory: count shards one by one, then merge them.

A shard counts the n-grams that begin in its part of the text. Its trie, a sorted run without suffix
links, goes to disk. Merging reads all runs together by ranges of first tokens: the n-grams that
begin with a range of tokens are contiguous in every level of every run, and sorting them together
gives the same range of the merged trie. The result is identical to counting in one piece, bit for
bit.

Counting a shard needs only its part of the text, and merging only the runs, so shards could be
counted on several machines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from elman.base.errors import UsageError
from elman.ngrams.counting import Ids, count_starts
from elman.ngrams.scratch import Scratch
from elman.ngrams.trie import CountTrie, Level, link

SMALLEST_MEMORY = 64 << 20
"""Lower limit of the memory for counting, besides what Python itself uses."""


def bytes_per_token(order: int) -> int:
    """Estimate the memory that counting and smoothing take per token, without the disk."""
    return 30 + 16 * (order - 1)


def memory_size(text: str) -> int:
    """Parse an amount of memory such as 2G, 500M or 1.5GiB; return bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if found is None:
        raise UsageError(f"'{text}' is not an amount of memory", "write it as 500M or 2G")
    power = " KMGT".index(found[2].upper() or " ")
    return int(float(found[1]) * 1024**power)


def check_memory(memory: int) -> None:
    """Check that there is enough memory to work in, whatever the text."""
    if memory < SMALLEST_MEMORY:
        raise UsageError(
            f"{memory:,} bytes of memory are too few to count in",
            f"give {SMALLEST_MEMORY >> 20}M or more; M and G are the units",
        )


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
    """Like `count`, in about `memory` bytes, with the trie's arrays on disk."""
    check_memory(memory)
    shard_size = memory // (2 * bytes_per_token(order))
    runs = [
        _store(run, scratch)
        for run in shards(ids, order, shard_size, vocab_size, boundary_id, num_threads)
    ]
    # A merged n-gram takes about 100 bytes of arrays at each level.
    trie = merge(runs, scratch, max_ngrams=memory // 200)
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
    """Count a text in shards of `shard_size` tokens."""
    for start in range(0, max(1, len(ids)), shard_size):
        end = min(start + shard_size, len(ids))
        shard = np.asarray(ids[start : end + order - 1])
        if start == 0:
            shard = np.concatenate([np.array([boundary_id], shard.dtype), shard])
        num_starts = end - start + (start == 0)
        run = count_starts(
            shard, num_starts, order,
            vocab_size=vocab_size, boundary_id=boundary_id, num_threads=num_threads,
        )  # fmt: skip
        if start == 0:
            run.levels[0].counts[boundary_id] -= 1
        yield run


def merge(runs: Sequence[CountTrie], scratch: Scratch, max_ngrams: int = 1 << 22) -> CountTrie:
    """Add up the counts of all runs into a trie on disk, about `max_ngrams` n-grams at a time."""
    order, vocab_size = runs[0].order, runs[0].vocab_size
    writers = [_Writer(scratch) for _ in range(order)]
    for start, end in _ranges(runs, max_ngrams):
        _merge_range(runs, start, end, writers)
    levels = [writer.level(scratch, last=i == order - 1) for i, writer in enumerate(writers)]
    assert len(levels[0]) == vocab_size
    return CountTrie(levels, runs[0].boundary_id)


def _ranges(runs: Sequence[CountTrie], max_ngrams: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of first tokens with at most `max_ngrams` n-grams, or of a single token."""
    size_V = np.ones(runs[0].vocab_size + 1, np.int64)
    most_V = np.zeros_like(size_V)
    for run in runs:
        bounds = np.arange(run.vocab_size + 1)
        for level in run.levels[:-1]:
            bounds = level.first_child[bounds].astype(np.int64)
            most_V[:-1] = np.maximum(most_V[:-1], np.diff(bounds))
    # An upper bound: the largest level of any run, times the number of runs.
    size_V[:-1] += most_V[:-1] * len(runs)
    start, filled = 0, 0
    for token, size in enumerate(size_V[:-1].tolist()):
        if filled + size > max_ngrams and token > start:
            yield start, token
            start, filled = token, 0
        filled += size
    yield start, len(size_V) - 1


def _merge_range(
    runs: Sequence[CountTrie], start: int, end: int, writers: Sequence[_Writer]
) -> None:
    """Merge the n-grams whose first token is in a range."""
    ranges = [(start, end) for _ in runs]
    merged = [np.arange(end - start) for _ in runs]  # the merged index of each run's n-grams
    counts = sum(run.levels[0].counts[start:end].astype(np.int64) for run in runs)
    writers[0].write(np.arange(start, end), np.asarray(counts))
    num_parents = end - start
    for length in range(2, len(writers) + 1):
        keys, numbers, below = [], [], []
        for run, (first, last), index in zip(runs, ranges, merged, strict=True):
            children = run.levels[length - 2].first_child[first : last + 1]
            low, high = int(children[0]), int(children[-1])
            level = run.levels[length - 1]
            parents = np.repeat(index, np.diff(children))
            keys.append((parents << 32) | level.words[low:high])
            numbers.append(level.counts[low:high])
            below.append((low, high))
        together = np.concatenate(keys)
        # The keys of each run are sorted: a stable sort merges them.
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
        ranges = below
        num_parents = len(found)


class _Writer:
    """Writes one level to disk."""

    def __init__(self, scratch: Scratch) -> None:
        self._paths = [scratch.path() for _ in range(3)]
        self._files = [path.open("wb") for path in self._paths]
        self._num_children = 0

    def write(self, words: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        self._files[0].write(words.astype(np.int32).data)
        self._files[1].write(counts.astype(np.int32).data)

    def write_children(self, num_children: NDArray[np.int64]) -> None:
        """Record the number of continuations of the n-grams written last."""
        first_child = self._num_children + np.cumsum(num_children) - num_children
        self._files[2].write(first_child.astype(np.int32).data)
        self._num_children += int(num_children.sum())

    def level(self, scratch: Scratch, *, last: bool) -> Level:
        """Close the files and map what was written."""
        if not last:
            self._files[2].write(np.array([self._num_children], np.int32).data)
        for file in self._files:
            file.close()
        words, counts, first_child = (scratch.open(path) for path in self._paths)
        return Level(words, counts, first_child=first_child)


def _store(run: CountTrie, scratch: Scratch) -> CountTrie:
    """Move the arrays to disk."""
    arrays = scratch.put(
        [part for level in run.levels for part in (level.words, level.counts, level.first_child)]
    )
    levels = [
        Level(words, counts, first_child=first_child)
        for words, counts, first_child in zip(*[iter(arrays)] * 3, strict=True)
    ]
    return CountTrie(levels, run.boundary_id)
