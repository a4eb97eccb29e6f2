"""Compiled loops of the sparse matrix model: hash contexts, find rows, leave one out, score.

`skipgrams`, `adjustment` and `sparse_matrix` explain the method. All loops are in one file because
numba's cache does not notice changes in other files.

The arrays of a model may come from a damaged file. So `score` and `distributions` raise
`IndexError` for indices out of range, and mark the blocks of 64 KiB that they read in `seen`, which
has the marks of keys, first, words, weights and sums, for the caller to verify before the results
are used. With None instead, numba compiles the loop without marks.

N events, K templates, F rows, E entries, I bins, B batch, T tokens, V vocabulary.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elman.ngrams.compiled import Scalar, compiled, inlined

Ids = NDArray[np.int64]
Keys = NDArray[np.uint64]
Floats = NDArray[np.float64]
Weights = NDArray[np.float32]

Marks = tuple[NDArray[np.uint8], ...] | None
# The block of number i of an array is i >> these: numbers have 8 or 4 bytes.
_8, _4 = np.uint64(13), np.uint64(14)
_U = np.uint64

NUM_BINS = 64
"""Number of bins of counts; see `bin_of`."""


@inlined
def context_key(
    text: Ids, place: Scalar, wall: int, kind: int, remote: int, skip: int, adjacent: int
) -> Any:
    """Hash a template's context before `place`; also return whether the text has this context.

    A context may begin with the token `wall` (the boundary token, or -1 to cross lines), but not
    reach past it.
    """
    key = np.uint64(kind + 1)
    present = True
    for back in range(1, remote + skip + adjacent + 1):
        token = text[place - back]
        if token < 0 or (token == wall and back < remote + skip + adjacent):
            present = False
            break
        if back <= adjacent or back > adjacent + skip:
            key = (key ^ np.uint64(token + 1)) * np.uint64(0x9E3779B97F4A7C15)
            key ^= key >> np.uint64(32)
    # The last step of splitmix64: uniform keys, so that `find_row` can guess their position.
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return key ^ (key >> np.uint64(31)), present


@inlined
def find_row(keys: Keys, seen: Marks, low: Scalar, high: Scalar, key: Scalar) -> Any:
    """Find a key among the sorted keys `low` to `high` - 1; return -1 if it is not there.

    Keys are uniform, so the search starts at the expected position.
    """
    begin, end = low, high
    guess = low + np.int64(np.float64(key) / 18446744073709551616.0 * np.float64(high - low))
    guess = min(max(guess, low), high - 1)
    stride = np.int64(8)
    if seen is not None and low < high:
        seen[0][_U(guess) >> _8] = 1
    if low < high and keys[guess] <= key:
        begin = guess
        while begin + stride < high and keys[begin + stride] <= key:
            begin += stride
            stride *= 2
            if seen is not None:
                seen[0][_U(begin) >> _8] = 1
        end = min(high, begin + stride)
    elif low < high:
        end = guess
        while end - stride > low and keys[end - stride] > key:
            end -= stride
            stride *= 2
            if seen is not None:
                seen[0][_U(end) >> _8] = 1
        begin = max(low, end - stride)
    if seen is not None and low < high:  # what ended the loops above
        seen[0][_U(min(begin + stride, high - 1)) >> _8] = 1
        seen[0][_U(begin) >> _8] = 1
    while end - begin > 1:
        middle = (begin + end) >> 1
        if seen is not None:
            seen[0][_U(middle) >> _8] = 1
        if keys[middle] <= key:
            begin = middle
        else:
            end = middle
    return begin if begin < end and keys[begin] == key else np.int64(-1)


@inlined
def find_context(
    text: Ids, place: Scalar, wall: int, templates_K3: Ids, row_starts: Ids, keys: Keys,
    seen: Marks, kind: int,
) -> Any:  # fmt: skip
    """Find the row of a template's context before `place`; return -1 if it has none."""
    remote, skip, adjacent = templates_K3[kind]
    key, present = context_key(text, place, wall, kind, remote, skip, adjacent)
    row = np.int64(-1)
    if present:
        row = find_row(keys, seen, row_starts[kind], row_starts[kind + 1], key)
    return row


@inlined
def find_entry(
    words: NDArray[np.int32], seen: Marks, low: Scalar, high: Scalar, word: Scalar
) -> Any:
    """Find a word among a row's sorted words; return -1 if it is not there."""
    begin, end = low, high
    while end - begin > 1:
        middle = (begin + end) >> 1
        if seen is not None:
            seen[2][_U(middle) >> _4] = 1
        if words[middle] <= word:
            begin = middle
        else:
            end = middle
    if seen is not None:
        seen[2][_U(begin) >> _4] = 1
    return begin if begin < end and words[begin] == word else np.int64(-1)


@inlined
def checked(first: Scalar, end: Scalar, num_entries: Scalar) -> Scalar:
    """Return `end`, the end of a row's entries; raise an error if they are not all there."""
    if _U(first) > _U(end) or _U(end) > _U(num_entries):
        raise IndexError
    return end


@compiled
def hash_text(
    text: Ids, num_before: int, wall: int, kind: int, remote: int, skip: int, adjacent: int,
    keys_T: Keys, present_T: NDArray[np.bool_],
) -> None:  # fmt: skip
    """Hash one template's context before every token of a text."""
    for place in range(num_before, len(text)):
        key, present = context_key(text, place, wall, kind, remote, skip, adjacent)
        keys_T[place - num_before] = key
        present_T[place - num_before] = present


@inlined
def bin_of(count: Scalar) -> Any:
    """Return the bin of a count: one each for 1 to 4, then two for each doubling."""
    return count - 1 if count < 5 else np.int64(2.0 * math.log2(count))


@compiled
def find(
    text: Ids, places: Ids, wall: int, templates_K3: Ids, row_starts: Ids, keys: Any, first: Ids,
    words: Any, counts: Any, rows_NK: Any, counts_NK: Any,
) -> None:  # fmt: skip
    """Find the rows of the contexts before some positions, and the counts of the words there."""
    for event in range(len(places)):
        place = places[event]
        for kind in range(len(templates_K3)):
            row = find_context(text, place, wall, templates_K3, row_starts, keys, None, kind)
            if row < 0:
                continue
            entry = find_entry(words, None, first[row], first[row + 1], text[place])
            if entry >= 0:
                rows_NK[event, kind] = row
                counts_NK[event, kind] = counts[entry]


@compiled
def sum_bins(entries: Ids, counts: Any, first: Ids, bins: Any, sums: Any, fill: bool) -> None:
    """Sum each row's counts by bin; unless `fill`, only count its bins into first[row + 1]."""
    by_bin = np.zeros(NUM_BINS, np.int64)
    for row in range(len(entries) - 1):
        for entry in range(entries[row], entries[row + 1]):
            by_bin[bin_of(counts[entry])] += counts[entry]
        place = first[row]
        for entry in range(entries[row], entries[row + 1]):
            which = bin_of(counts[entry])
            if by_bin[which]:
                if fill:
                    bins[place] = which
                    sums[place] = by_bin[which]
                    place += 1
                else:
                    first[row + 1] += 1
                by_bin[which] = 0


@compiled
def leave_one_out(
    rows_NK: Any, counts_NK: Any, batch: Ids, totals: Any, first: Ids, bins: Any, sums: Any,
    factors_KII: Floats, uniform: float, vocab_size: int, gradient_KII: Floats,
) -> Any:  # fmt: skip
    """Sum log P(word | contexts) over events without their own counts, and its gradient w.r.t. A.

    P = top / bottom. A context adds to the bottom the sum of its row, with the event's count and
    the context's total lowered by one.
    """
    logprob, to_uniform = 0.0, 0.0
    for event in batch:
        top, bottom = uniform / vocab_size, uniform
        for part in range(2):  # first the probability, then the gradient
            for kind in range(rows_NK.shape[1]):
                row = rows_NK[event, kind]
                if row < 0 or totals[row] < 2:  # the context occurs only here
                    continue
                others = totals[row] - 1
                count = counts_NK[event, kind]
                factors_I = factors_KII[kind, bin_of(others)]
                slopes_I = gradient_KII[kind, bin_of(others)]
                own, less = bin_of(count), bin_of(max(1, count - 1))
                if part == 0:
                    mass = (count - 1) * factors_I[less] - count * factors_I[own]
                    for place in range(first[row], first[row + 1]):
                        mass += sums[place] * factors_I[bins[place]]
                    top += (count - 1) * factors_I[less] / others
                    bottom += mass / others
                else:
                    slopes_I[less] += (
                        (count - 1) * factors_I[less] / others * (1 / top - 1 / bottom)
                    )
                    slopes_I[own] += count * factors_I[own] / others / bottom
                    for place in range(first[row], first[row + 1]):
                        which = bins[place]
                        slopes_I[which] -= sums[place] * factors_I[which] / others / bottom
        logprob += math.log(top / bottom)
        to_uniform += uniform / vocab_size / top - uniform / bottom
    return logprob, to_uniform


@compiled
def adjust(
    row_starts: Ids, first: Ids, counts: Any, totals: Any, factors_KII: Floats, weights: Any,
    sums: Any,
) -> None:  # fmt: skip
    """Compute the adjusted entries and the sum of each row."""
    for kind in range(len(row_starts) - 1):
        for row in range(row_starts[kind], row_starts[kind + 1]):
            factors_I = factors_KII[kind, bin_of(totals[row])]
            total = 0.0
            for entry in range(first[row], first[row + 1]):
                weight = counts[entry] / totals[row] * factors_I[bin_of(counts[entry])]
                weights[entry] = weight
                total += weight
            sums[row] = total


@compiled
def score(
    texts_BX: Ids, num_before: int, targets_BT: Ids, wall: int, templates_K3: Ids, row_starts: Ids,
    keys: Keys, first: Ids, words: Any, weights: Weights, sums: Weights, seen: Marks,
    uniform: float, vocab_size: int, logprobs_BT: Weights,
) -> None:  # fmt: skip
    """Compute the log probability of each target.

    The context of the target at time t is the first `num_before` + t tokens of its row.
    """
    for line in range(len(targets_BT)):
        text = texts_BX[line]
        for time in range(targets_BT.shape[1]):
            top, bottom = uniform / vocab_size, uniform
            for kind in range(len(templates_K3)):
                row = find_context(
                    text, num_before + time, wall, templates_K3, row_starts, keys, seen, kind
                )
                if row < 0:
                    continue
                if seen is not None:
                    seen[1][_U(row) >> _8] = seen[1][_U(row + 1) >> _8] = 1
                    seen[4][_U(row) >> _4] = 1
                bottom += sums[row]
                end = checked(first[row], first[row + 1], len(words))
                entry = find_entry(words, seen, first[row], end, targets_BT[line, time])
                if seen is not None and entry >= 0:
                    seen[3][_U(entry) >> _4] = 1
                if entry >= 0:
                    top += weights[entry]
            logprobs_BT[line, time] = math.log(top / bottom)


@compiled
def distributions(
    texts_BX: Ids, wall: int, templates_K3: Ids, row_starts: Ids, keys: Keys, first: Ids,
    words: Any, weights: Weights, sums: Weights, seen: Marks, uniform: float, logprobs_BV: Weights,
) -> None:  # fmt: skip
    """Compute the log probability of every word after each row's text."""
    vocab_size = logprobs_BV.shape[1]
    tops_V = np.empty(vocab_size, np.float64)
    for line in range(len(texts_BX)):
        text = texts_BX[line]
        tops_V[:] = uniform / vocab_size
        bottom = uniform
        for kind in range(len(templates_K3)):
            row = find_context(text, len(text), wall, templates_K3, row_starts, keys, seen, kind)
            if row < 0:
                continue
            if seen is not None:
                seen[1][_U(row) >> _8] = seen[1][_U(row + 1) >> _8] = 1
                seen[4][_U(row) >> _4] = 1
            bottom += sums[row]
            end = checked(first[row], first[row + 1], len(words))
            if seen is not None:
                for block in range(_U(first[row]) >> _4, (_U(end) >> _4) + _U(1)):
                    seen[2][block] = seen[3][block] = 1
            for entry in range(first[row], end):
                if not 0 <= words[entry] < vocab_size:
                    raise IndexError
                tops_V[words[entry]] += weights[entry]
        for word in range(vocab_size):
            logprobs_BV[line, word] = math.log(tops_V[word] / bottom)
