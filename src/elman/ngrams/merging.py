"""Merge sorted runs of counts into one.

A run has the n-grams of a part of the text, as a trie without suffix links, in a folder of files
(`trie_files`, `packed_runs`). All runs are read together from the front: a step takes the least
n-gram among the next ones of each run, adds up its counts, and descends to its continuations. So
every file is read and written in order, in little memory, and the n-grams that begin with a range
of tokens can be merged apart from the others.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from elman.ngrams.compiled import compiled
from elman.ngrams.packed_runs import CHUNK, PackedRun
from elman.ngrams.trie import Array
from elman.ngrams.trie_files import FIELDS, TrieFiles

Numbers = NDArray[np.int64]

MOST_MEMORY = 16 << 20
"""Bytes of the buffers of a merge, unless there are very many runs."""
_LEAST_BUFFER = 64  # n-grams
_DONE, _FULL, _EMPTY = 0, 1, 2


def merge(
    runs: Sequence[TrieFiles | PackedRun],
    start: int,
    end: int,
    merged: TrieFiles,
    memory: int = MOST_MEMORY,
) -> None:
    """Add up the counts of the n-grams whose first token is `start` to `end` - 1.

    The indices in the merged files count from the first n-gram of the range.
    """
    order, num_runs = merged.order, len(runs)
    size = max(_LEAST_BUFFER, memory // (12 * order * (num_runs + 1)))
    read: list[Array] = [np.empty((order, num_runs, size), np.int32) for _ in FIELDS]
    made: list[Array] = [np.empty((order, size), np.int32) for _ in FIELDS]
    # By level and run: the next n-gram in the file, the end of the range; in the buffer the next
    # one and the end; how many continue the current n-gram, and in which runs.
    next_read, stop = _ranges(runs, start, end)
    at, filled = np.zeros((order, num_runs), np.int64), np.zeros((order, num_runs), np.int64)
    left, active = np.zeros((order, num_runs), np.int64), np.zeros((order, num_runs), np.int64)
    num_active, sizes, totals = (np.zeros(order, np.int64) for _ in range(3))
    state = np.zeros(2, np.int64)
    if end > start:
        left[0], active[0], num_active[0] = end - start, np.arange(num_runs), num_runs
    result = _FULL
    while result != _DONE:
        result = _merge(
            *read, at, filled, left, active, num_active, *made, sizes, totals, state,
        )  # fmt: skip
        if result == _EMPTY:
            level, run = state.tolist()
            first, number = next_read[level, run], stop[level, run] - next_read[level, run]
            if size >= CHUNK:  # end with a chunk, or it would be unpacked twice
                number = min(number, (first + size) // CHUNK * CHUNK - first)
            number = min(size, number)
            runs[run].read(level, first, [field[level, run, :number] for field in read])
            next_read[level, run] += number
            at[level, run], filled[level, run] = 0, number
        else:
            for level in range(order):
                merged.append(level, [field[level, : sizes[level]] for field in made])
            sizes[:] = 0
    merged.finish(totals.tolist())


def _ranges(runs: Sequence[TrieFiles | PackedRun], start: int, end: int) -> tuple[Numbers, Numbers]:
    """Return, by level and run, the range of the n-grams whose first token is in a range."""
    order = runs[0].order
    first, stop = np.empty((order, len(runs)), np.int64), np.empty((order, len(runs)), np.int64)
    for i, run in enumerate(runs):
        bounds = (start, end)
        for level in range(order):
            first[level, i], stop[level, i] = bounds
            if level + 1 < order:
                bounds = run.first_child(level, bounds[0]), run.first_child(level, bounds[1])
    return first, stop


@compiled
def _merge(
    words: Array, counts: Array, num_children: Array, at: Numbers, filled: Numbers, left: Numbers,
    active: Numbers, num_active: Numbers, new_words: Array, new_counts: Array,
    new_first_child: Array, sizes: Numbers, totals: Numbers, state: Numbers,
) -> int:  # fmt: skip
    """Merge until a buffer is full or empty, which `state` (level, run) tells."""
    last, size = len(at) - 1, new_words.shape[1]
    depth = state[0]
    while True:
        if num_active[depth] == 0:
            if depth == 0:
                return 0
            depth -= 1
            continue
        if sizes[depth] == size:
            state[0] = depth
            return 1
        word = np.int32(2**31 - 1)
        for i in range(num_active[depth]):
            run = active[depth, i]
            if at[depth, run] == filled[depth, run]:
                state[0], state[1] = depth, run
                return 2
            word = min(word, words[depth, run, at[depth, run]])
        count, num_deeper, i = 0, 0, 0
        while i < num_active[depth]:
            run = active[depth, i]
            place = at[depth, run]
            if words[depth, run, place] == word:
                count += counts[depth, run, place]
                if depth < last and num_children[depth, run, place] > 0:
                    active[depth + 1, num_deeper] = run
                    left[depth + 1, run] = num_children[depth, run, place]
                    num_deeper += 1
                at[depth, run] += 1
                left[depth, run] -= 1
                if left[depth, run] == 0:
                    num_active[depth] -= 1
                    active[depth, i] = active[depth, num_active[depth]]
                    continue
            i += 1
        new_words[depth, sizes[depth]] = word
        new_counts[depth, sizes[depth]] = count
        if depth < last:
            new_first_child[depth, sizes[depth]] = totals[depth + 1]
        sizes[depth] += 1
        totals[depth] += 1
        if num_deeper > 0:
            depth += 1
            num_active[depth] = num_deeper
