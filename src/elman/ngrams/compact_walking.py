"""Compiled loops over a `CompactModel`: pack and unpack, step, score texts, compute distributions.

The loops over a model begin with the same arguments: its arrays, as described in `compact`, and
marks. A context is (order - 1,) nodes: at k the entry, among those of its length, of the last
k + 1 tokens, or -1 if they are not stored. So no entry needs a link to a shorter one: each token is
looked up after all of them, the shortest first. Where the model is closed, that is every stored
n-gram's suffix is stored too, the first that is not found is the last looked up.

As in `walking`, every step between entries is checked, and `seen` has the marks of the blocks that
are read; here only `records` has marks, since everything else is verified when a file is opened.

B batch, C and T tokens, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from elman.ngrams.compiled import Scalar, choose, compiled, inlined, prefetch
from elman.ngrams.interpolation import Floats
from elman.ngrams.trie import Array

Ids = NDArray[Any]
Nodes = NDArray[np.int64]
Words64 = NDArray[np.uint64]
Codes = NDArray[np.uint32]
Marks = tuple[NDArray[np.uint8], ...] | None
START, WIDTH, SIZE, BASES, WORD, PROB, BACKOFF, POINTER, PROB_BINS, BACKOFF_BINS = range(10)
"""The columns of `shape`, by length: first bit of the records, bits of one, their number, first of
the bases; the bits of the four fields, in this order; first of the bins."""
NUM_COLUMNS = 10
EXACT = 32
"""Bits of a number that is not quantised."""
BLOCK_BITS = 6
BLOCK = 1 << BLOCK_BITS
"""Records that share a base of their pointers."""
_U = np.uint64
_ONE = _U(1)
_NO_WORD = _U(1 << 63)
_MARK = _U(19)  # a block of marks has 2 ** 19 bits


@inlined
def _bits(records: Words64, seen: Marks, at: Scalar, width: Scalar) -> Scalar:
    """Return `width` bits from bit `at` on."""
    if seen is not None:
        seen[0][at >> _MARK] = 1
        seen[0][(at + _U(63)) >> _MARK] = 1
    word, shift = at >> _U(6), at & _U(63)
    # Two shifts: one by 64 bits is undefined.
    high = (records[word + _ONE] << _ONE) << (_U(63) - shift)
    return ((records[word] >> shift) | high) & ((_ONE << _U(width)) - _ONE)


@inlined
def _word(records: Words64, shape: Nodes, seen: Marks, level: Scalar, node: Scalar) -> Scalar:
    at = _U(shape[level, START]) + _U(node) * _U(shape[level, WIDTH])
    return _bits(records, seen, at, shape[level, WORD])


# These take numbers, not arrays: numba counts references of arrays that are passed past a `raise`.
@inlined
def _span(first: Scalar, end: Scalar, num_entries: Scalar) -> Scalar:
    """Return the number of continuations, `end` - `first`."""
    if _U(first) > _U(end) or _U(end) > _U(num_entries):
        raise IndexError
    return end - first


@inlined
def _exact(code: Scalar) -> Scalar:
    """Return the number of a code that is not that of a bin."""
    value = np.float32(np.uint32(code).view(np.float32))
    if not value < np.inf:
        raise IndexError
    return value


@inlined
def _code(
    records: Words64, shape: Nodes, seen: Marks, level: Scalar, node: Scalar, which: Scalar
) -> Scalar:
    """Return the code of the log probability (`which` is 0) or back-off weight (1) of an entry."""
    at = _U(shape[level, START]) + _U(node) * _U(shape[level, WIDTH]) + _U(shape[level, WORD])
    return _bits(records, seen, at + _U(which * shape[level, PROB]), shape[level, PROB + which])


@inlined
def _value(
    records: Words64, bins: Floats, shape: Nodes, seen: Marks, level: Scalar, node: Scalar,
    which: Scalar,
) -> Scalar:  # fmt: skip
    """Return the log probability (`which` is 0) or back-off weight (1) of an entry."""
    code = _code(records, shape, seen, level, node, which)
    if shape[level, PROB + which] < EXACT:
        return bins[_U(shape[level, PROB_BINS + which]) + code]
    return _exact(code)


@inlined
def _offset(records: Words64, shape: Nodes, seen: Marks, level: Scalar, node: Scalar) -> Scalar:
    """Return the pointer of an entry, less the base of its block."""
    at = _U(shape[level, START]) + _U(node + 1) * _U(shape[level, WIDTH])
    width = shape[level, POINTER]
    return np.int64(_bits(records, seen, at - _U(width), width))


@inlined
def _pointer(
    records: Words64, bases: Array, wide: Array, shape: Nodes, seen: Marks, level: Scalar,
    node: Scalar,
) -> Scalar:  # fmt: skip
    """Return the first continuation of an entry of a length above 1."""
    base = np.int64(bases[_U(shape[level, BASES]) + (_U(node) >> _U(BLOCK_BITS))])
    if base < 0:
        return np.int64(wide[_U(-1 - base) * _U(BLOCK) + (_U(node) & _U(BLOCK - 1))])
    return base + _offset(records, shape, seen, level, node)


@inlined
def _children(
    records: Words64, bases: Array, wide: Array, roots: Array, shape: Nodes, seen: Marks,
    level: Scalar, node: Scalar,
) -> tuple[Scalar, Scalar]:  # fmt: skip
    """Return the first continuation of an entry, and their number."""
    if level == 0:
        first, end = np.int64(roots[_U(node)]), np.int64(roots[_U(node) + _ONE])
    else:
        first = _pointer(records, bases, wide, shape, seen, level, node)
        end = _pointer(records, bases, wide, shape, seen, level, node + 1)
    return first, _span(first, end, shape[level + 1, SIZE])


@compiled
def _find(
    records: Words64, bases: Array, wide: Array, roots: Array, shape: Nodes, seen: Marks,
    level: Scalar, node: Scalar, word: Scalar,
) -> Scalar:  # fmt: skip
    """Return the entry of the next length of a context and `word`, or -1."""
    low, size = _children(records, bases, wide, roots, shape, seen, level, node)
    while size > 1:
        half = size >> 1
        if _word(records, shape, seen, level + 1, low + half) <= _U(word):
            low += half
        size -= half
    if size == 1 and _word(records, shape, seen, level + 1, low) == _U(word):
        return low
    return np.int64(-1)


@inlined
def _score(
    records: Words64, unigrams: Floats, bins: Floats, shape: Nodes, seen: Marks, nodes: Nodes,
    best: Scalar, ngram: Scalar,
) -> Scalar:  # fmt: skip
    """Return the log probability of an entry of length `best` + 1 after a context."""
    total = np.float32(0.0)
    # In the order of the plain layout, to round alike.
    for level in range(len(shape) - 2, best - 1, -1):
        if nodes[level] >= 0:
            if level == 0:
                total += unigrams[_U(nodes[0]), 1]
            else:
                total += _value(records, bins, shape, seen, level, nodes[level], 1)
    if best == 0:
        return total + unigrams[_U(ngram), 0]
    return total + _value(records, bins, shape, seen, best, ngram, 0)


@compiled
def _read(
    records: Words64, bases: Array, wide: Array, roots: Array, unigrams: Floats, bins: Floats,
    shape: Nodes, closed: Scalar, boundary_id: Scalar, seen: Marks, nodes: Nodes, fresh: Nodes,
    word: Scalar,
) -> Scalar:  # fmt: skip
    """Return the log probability of a word after a context; `fresh` becomes the next one.

    `fresh` has one node more, for the longest n-grams.
    """
    fresh[0] = word
    best, searching = 0, True
    for level in range(len(nodes)):
        found = np.int64(-1)
        if searching and nodes[level] >= 0:
            found = _find(records, bases, wide, roots, shape, seen, level, nodes[level], word)
            searching = found >= 0 or not closed
        fresh[level + 1] = found
        if found >= 0:
            best = level + 1
    total = _score(records, unigrams, bins, shape, seen, nodes, best, fresh[best])
    if word == boundary_id:
        fresh[1:] = -1
    return total


@compiled
def walk(
    records: Words64, bases: Array, wide: Array, roots: Array, unigrams: Floats, bins: Floats,
    shape: Nodes, closed: bool, boundary_id: int, seen: Marks, tokens_BC: Ids, nodes_BK: Nodes,
) -> None:  # fmt: skip
    """Advance each row's context through its tokens."""
    fresh = np.empty(nodes_BK.shape[1] + 1, np.int64)
    for b in range(tokens_BC.shape[0]):
        for c in range(tokens_BC.shape[1]):
            word = np.int64(tokens_BC[b, c])
            if word < 0:
                nodes_BK[b] = -1
                continue
            _read(
                records, bases, wide, roots, unigrams, bins, shape, closed, boundary_id, seen,
                nodes_BK[b], fresh, word,
            )  # fmt: skip
            nodes_BK[b] = fresh[:-1]


@compiled
def score_rows(
    records: Words64, bases: Array, wide: Array, roots: Array, unigrams: Floats, bins: Floats,
    shape: Nodes, closed: bool, boundary_id: int, seen: Marks, tokens_BT: Ids, targets_BT: Ids,
    nodes_BK: Nodes, logprobs_BT: Floats,
) -> None:  # fmt: skip
    """Score each target; reuse its context if the target is also the next token."""
    nodes, fresh = np.empty(nodes_BK.shape[1], np.int64), np.empty(len(shape), np.int64)
    for b in range(tokens_BT.shape[0]):
        nodes[:] = nodes_BK[b]
        read = np.int64(-1)
        for t in range(tokens_BT.shape[1]):
            word = np.int64(tokens_BT[b, t])
            if word != read:
                _read(
                    records, bases, wide, roots, unigrams, bins, shape, closed, boundary_id, seen,
                    nodes, fresh, word,
                )  # fmt: skip
            nodes[:] = fresh[:-1]
            read = np.int64(targets_BT[b, t])
            logprobs_BT[b, t] = _read(
                records, bases, wide, roots, unigrams, bins, shape, closed, boundary_id, seen,
                nodes, fresh, read,
            )  # fmt: skip


@inlined
def _pointer_address(
    records_at: Scalar, roots_at: Scalar, shape: Nodes, level: Scalar, node: Scalar
) -> Scalar:
    """Return the address of what `_children` reads first."""
    if level == 0:
        return roots_at + (_U(node) << _U(2))
    end = _U(shape[level, START]) + _U(node + 1) * _U(shape[level, WIDTH])
    return records_at + ((end >> _U(6)) << _U(3))


@compiled
def score_lanes(
    records: Words64, bases: Array, wide: Array, roots: Array, unigrams: Floats, bins: Floats,
    shape: Nodes, closed: bool, boundary_id: int, seen: Marks, ids_T: Ids, cuts: Nodes,
    nodes_BK: Nodes, logprobs_T: Floats,
) -> None:  # fmt: skip
    """Score the lanes between `cuts`, each from its own context, interleaved (see `walking`).

    What `_score` and `_children` do is written out: numba counts references of the arrays of a
    helper that has branches, which took more than half of the time.
    """
    num_lanes, depth = _U(len(cuts) - 1), nodes_BK.shape[1]
    records_at, roots_at = _U(records.ctypes.data), _U(roots.ctypes.data)
    at, stop = cuts[:-1].copy(), cuts[1:]
    nodes, fresh = nodes_BK.copy(), np.full((num_lanes, depth + 1), -1, np.int64)
    level, best = np.full(num_lanes, -1, np.int64), np.zeros(num_lanes, np.int64)
    low, size = np.zeros(num_lanes, np.uint64), np.zeros(num_lanes, np.uint64)
    # The first bit of the records to search, and the bits of one.
    start, width = np.zeros(num_lanes, np.uint64), np.zeros(num_lanes, np.uint64)
    word, below = np.zeros(num_lanes, np.uint64), np.zeros(num_lanes, np.uint64)
    word_bits = shape[depth, WORD]
    searching, ended = np.zeros(num_lanes, np.uint64), np.zeros(num_lanes, np.uint64)
    opening = np.zeros(num_lanes, np.uint64)
    num_searching = num_ended = num_opening = num_left = _U(0)
    for lane in range(num_lanes):
        if at[lane] < stop[lane]:
            word[lane] = ids_T[at[lane]]
            fresh[lane, 0] = word[lane]
            ended[num_left] = lane
            num_left += _ONE
    num_ended = num_left
    while num_left > _U(0):
        for i in range(num_ended):
            lane = ended[i]
            k, more = level[lane], True
            if k >= 0 and below[lane] == word[lane]:
                fresh[lane, k + 1] = np.int64(low[lane])
                best[lane] = k + 1
            elif k >= 0:
                more = not closed
            while True:
                k += 1
                while k < depth and more and nodes[lane, k] < 0:
                    k += 1
                if k < depth and more:
                    level[lane] = k
                    opening[num_opening] = lane
                    num_opening += _ONE
                    prefetch(_pointer_address(records_at, roots_at, shape, k, nodes[lane, k]))
                    break
                total, longest = np.float32(0.0), best[lane]
                for k in range(depth - 1, longest - 1, -1):
                    node = nodes[lane, k]
                    if node >= 0 and k == 0:
                        total += unigrams[_U(node), 1]
                    elif node >= 0:
                        code = _code(records, shape, seen, k, node, 1)
                        if shape[k, BACKOFF] < EXACT:
                            total += bins[_U(shape[k, BACKOFF_BINS]) + code]
                        else:
                            total += _exact(code)
                node = fresh[lane, longest]
                if longest == 0:
                    total += unigrams[_U(node), 0]
                else:
                    code = _code(records, shape, seen, longest, node, 0)
                    if shape[longest, PROB] < EXACT:
                        total += bins[_U(shape[longest, PROB_BINS]) + code]
                    else:
                        total += _exact(code)
                logprobs_T[at[lane]] = total
                ends = word[lane] == _U(boundary_id)
                for k in range(depth):
                    nodes[lane, k] = -1 if ends and k > 0 else fresh[lane, k]
                    fresh[lane, k] = -1
                fresh[lane, depth] = -1
                at[lane] += 1
                if at[lane] == stop[lane]:
                    num_left -= _ONE
                    break
                word[lane] = ids_T[at[lane]]
                fresh[lane, 0] = word[lane]
                k, more, best[lane] = -1, True, 0
        number, num_searching, num_ended = num_searching, _U(0), _U(0)
        for i in range(number):
            lane = searching[i]
            half = size[lane] >> _ONE
            middle = low[lane] + half
            read = _bits(records, seen, start[lane] + middle * width[lane], word_bits)
            first = choose(read <= word[lane], middle, low[lane])
            below[lane] = choose(read <= word[lane], read, below[lane])
            left = size[lane] - half
            low[lane], size[lane] = first, left
            following = start[lane] + (first + (left >> _ONE)) * width[lane]
            prefetch(records_at + ((following >> _U(6)) << _U(3)))
            searching[num_searching] = ended[num_ended] = lane
            num_searching += _U(left > _ONE)
            num_ended += _U(left <= _ONE)
        number, num_opening = num_opening, _U(0)
        for i in range(number):
            lane = opening[i]
            k = level[lane]
            node = _U(nodes[lane, k])
            begin, end = np.int64(roots[node * _U(k == 0)]), np.int64(0)
            if k == 0:
                end = np.int64(roots[node + _ONE])
            else:
                for side in range(2):
                    entry = node + _U(side)
                    base = np.int64(bases[_U(shape[k, BASES]) + (entry >> _U(BLOCK_BITS))])
                    begin = end
                    if base < 0:
                        end = np.int64(wide[_U(-1 - base) * _U(BLOCK) + (entry & _U(BLOCK - 1))])
                    else:
                        end = base + _offset(records, shape, seen, k, np.int64(entry))
            found = _span(begin, end, shape[k + 1, SIZE])
            # From the entry before the first continuation on, which stands for none.
            first, left = _U(begin) - _ONE, _U(found) + _ONE
            low[lane], size[lane], below[lane] = first, left, _NO_WORD
            start[lane], width[lane] = shape[k + 1, START], shape[k + 1, WIDTH]
            following = start[lane] + (first + (left >> _ONE)) * width[lane]
            prefetch(records_at + ((following >> _U(6)) << _U(3)))
            searching[num_searching] = ended[num_ended] = lane
            num_searching += _U(left > _ONE)
            num_ended += _U(left <= _ONE)


@compiled
def distributions(
    records: Words64, bases: Array, wide: Array, roots: Array, unigrams: Floats, bins: Floats,
    shape: Nodes, closed: bool, boundary_id: int, seen: Marks, nodes_BK: Nodes,
    unigrams_V: Floats, order: int, logprobs_BV: Floats,
) -> None:  # fmt: skip
    """Compute the log probability of every token after each context."""
    for b in range(len(nodes_BK)):
        # From the shortest context on, longer n-grams overwrite shorter ones.
        for level in range(-1, order - 1):
            if level >= 0 and nodes_BK[b, level] < 0:
                continue
            weight = np.float32(0.0)
            for longer in range(order - 2, level, -1):
                if nodes_BK[b, longer] >= 0 and longer == 0:
                    weight += unigrams[_U(nodes_BK[b, 0]), 1]
                elif nodes_BK[b, longer] >= 0:
                    weight += _value(records, bins, shape, seen, longer, nodes_BK[b, longer], 1)
            if level < 0:
                for token in range(len(unigrams_V)):
                    logprobs_BV[b, token] = weight + unigrams_V[token]
                continue
            first, number = _children(
                records, bases, wide, roots, shape, seen, level, nodes_BK[b, level]
            )
            for child in range(first, first + number):
                word = _word(records, shape, seen, level + 1, child)
                if word >= _U(len(unigrams_V)):
                    raise IndexError
                own = _value(records, bins, shape, seen, level + 1, child, 0)
                logprobs_BV[b, word] = weight + own


@compiled
def followed(
    records: Words64, bases: Array, wide: Array, roots: Array, unigrams: Floats, bins: Floats,
    shape: Nodes, closed: bool, boundary_id: int, seen: Marks, nodes_BK: Nodes, lengths_B: Nodes,
) -> None:  # fmt: skip
    """Set the length of the longest context of each row that has continuations or a weight."""
    for b in range(len(nodes_BK)):
        lengths_B[b] = 0
        for level in range(nodes_BK.shape[1]):
            node = nodes_BK[b, level]
            if node >= 0:
                _, number = _children(records, bases, wide, roots, shape, seen, level, node)
                if level == 0:
                    weight = unigrams[_U(node), 1]
                else:
                    weight = _value(records, bins, shape, seen, level, node, 1)
                if number > 0 or weight != 0:
                    lengths_B[b] = level + 1


@compiled
def pack(
    words: Array, probs: Codes, backoffs: Codes, offsets: Array, widths: Nodes, packed: Words64
) -> None:
    """Pack records of four fields of these widths; `packed` is zeros, one more than needed."""
    at = _U(0)
    for i in range(_U(len(words))):
        for field in range(4):
            if field == 0:
                value = _U(words[i])
            elif field == 1:
                value = _U(probs[i])
            elif field == 2:
                value = _U(backoffs[i])
            else:
                value = _U(offsets[i])
            word, shift = at >> _U(6), at & _U(63)
            packed[word] |= value << shift
            packed[word + _ONE] |= (value >> _ONE) >> (_U(63) - shift)
            at += _U(widths[field])


@compiled
def unpack(
    records: Words64, bases: Array, wide: Array, roots: Array, unigrams: Floats, bins: Floats,
    shape: Nodes, closed: bool, boundary_id: int, seen: Marks, level: int, words: Array,
    first_child: Array, logprob: Floats, backoff: Floats,
) -> None:  # fmt: skip
    """Read all entries of a length above 1; those of the longest have no `first_child`."""
    for i in range(len(words)):
        word = _word(records, shape, seen, level, i)
        if word >= _U(len(unigrams)):
            raise IndexError
        words[i] = word
        logprob[i] = _value(records, bins, shape, seen, level, i, 0)
        if len(first_child) > 0:
            backoff[i] = _value(records, bins, shape, seen, level, i, 1)
            first, _ = _children(records, bases, wide, roots, shape, seen, level, i)
            first_child[i] = first
