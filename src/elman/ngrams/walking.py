"""Compiled loops over a `BackoffModel`: step, score texts, compute distributions.

All loops begin with the same seven arguments: the model's arrays, its boundary token and marks. _i
and _f are integer and floating-point views of the same memory. Columns, as named in `backoff`:
contexts 0 first child, 1 suffix, 2 log probability, 3 back-off weight; leaves 0 suffix, 1 log
probability.

The arrays may come from a damaged file, and an index out of range in a compiled loop crashes the
process. So every step between entries is checked, at no measurable cost beside the memory latency,
and raises `IndexError`.

`seen` has the marks of contexts, leaves and words: a loop marks each block of 64 KiB that it reads,
for the caller to verify before the results are used. Marking takes up to a quarter of the time of a
loop. With None instead, numba compiles the loop without it.

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
Marks = tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]] | None
_U = np.uint64
_ONE = _U(1)
# The block of entry i is i >> these: a row of contexts has 16 bytes, of leaves 8, of words 4.
_C, _L, _W = _U(12), _U(13), _U(14)


# These take numbers, not arrays: numba counts references of arrays passed past a `raise`.
# As unsigned numbers negative ones are too large as well, which saves a comparison.
@inlined
def _span(first: Scalar, end: Scalar, num_ngrams: Scalar) -> Scalar:
    """Return the number of continuations, `end` - `first`."""
    if _U(first) > _U(end) or _U(end) > _U(num_ngrams):
        raise IndexError
    return np.int64(end) - np.int64(first)


@inlined
def _suffix(suffix: Scalar, end: Scalar) -> Scalar:
    """Return a suffix or -1; it must be less than `end`: a context's suffix precedes it."""
    if _U(np.int64(suffix) + 1) > _U(end):
        raise IndexError
    return np.int64(suffix)


@inlined
def _mark(seen: Marks, which: int, first: Scalar, end: Scalar, shift: Scalar) -> None:
    """Mark the blocks of entries `first` to `end` - 1, if any, of one of the arrays."""
    if seen is not None and first < end:
        for block in range(_U(first) >> shift, (_U(end - 1) >> shift) + _U(1)):
            seen[which][block] = 1


@inlined
def _find(contexts_i: Array, words: Array, seen: Marks, context: Scalar, word: Scalar) -> Scalar:
    """Return the n-gram of a context and `word`, or -1."""
    if seen is not None:
        seen[0][_U(context) >> _C] = seen[0][_U(context + 1) >> _C] = 1
    low = np.int64(contexts_i[context, 0])
    size = _span(low, contexts_i[context + 1, 0], len(words))
    while size > 1:
        half = size >> 1
        if seen is not None:
            seen[2][_U(low + half) >> _W] = 1
        low = low + half if words[low + half] <= word else low
        size -= half
    if seen is not None:
        seen[2][_U(low) >> _W] = 1
    return low if size == 1 and words[low] == word else np.int64(-1)


@inlined
def _read(
    contexts_i: Array, contexts_f: Floats, leaves_i: Array, leaves_f: Floats, words: Array,
    boundary_id: Scalar, seen: Marks, context: Scalar, word: Scalar,
) -> tuple[Scalar, Scalar]:  # fmt: skip
    """Return the log probability of a word after a context, and the next context."""
    num_contexts = np.int64(len(contexts_i) - 1)
    total = np.float32(0.0)
    ngram = np.int64(-1)
    while context >= 0:
        ngram = _find(contexts_i, words, seen, context, word)
        if ngram >= 0:
            break
        total += contexts_f[context, 3]
        context = _suffix(contexts_i[context, 1], context)
    if ngram < 0:
        ngram = np.int64(word)
    if seen is not None:
        if ngram < num_contexts:
            seen[0][_U(ngram) >> _C] = 1
        else:
            seen[1][_U(ngram - num_contexts) >> _L] = 1
    if ngram < num_contexts:
        total += contexts_f[ngram, 2]
        following = ngram
    else:
        total += leaves_f[ngram - num_contexts, 1]
        following = _suffix(leaves_i[ngram - num_contexts, 0], num_contexts)
    if word == boundary_id and num_contexts > 0:
        following = np.int64(boundary_id)
    # A context without continuations and with weight 0 is equivalent to its suffix.
    if seen is not None:
        seen[0][_U(following * (following > 0)) >> _C] = 1
        seen[0][_U(following + 1) >> _C] = 1
    while (
        following >= 0
        and contexts_i[following, 0] == contexts_i[following + 1, 0]
        and contexts_f[following, 3] == 0
    ):
        following = _suffix(contexts_i[following, 1], following)
        if seen is not None:
            seen[0][_U(following * (following > 0)) >> _C] = 1
            seen[0][_U(following + 1) >> _C] = 1
    return total, following


@compiled
def walk(
    contexts_i: Array, contexts_f: Floats, leaves_i: Array, leaves_f: Floats, words: Array,
    boundary_id: int, seen: Marks, tokens_BC: Ids, nodes_B: Nodes,
) -> None:  # fmt: skip
    """Advance each row's context through its tokens."""
    for b in range(tokens_BC.shape[0]):
        node = nodes_B[b]
        for c in range(tokens_BC.shape[1]):
            word = tokens_BC[b, c]
            if word < 0:
                node = np.int64(-1)
            else:
                _, node = _read(
                    contexts_i, contexts_f, leaves_i, leaves_f, words, boundary_id, seen, node, word
                )
        nodes_B[b] = node


@compiled
def score_lanes(
    contexts_i: Array, contexts_f: Floats, leaves_i: Array, leaves_f: Floats, words: Array,
    boundary_id: int, seen: Marks, ids_T: Ids, cuts: Nodes, nodes: Nodes, logprobs_T: Floats,
) -> None:  # fmt: skip
    """Score the lanes between `cuts`, each from its own context, interleaved.

    A lane is in one of four lists, by what it does next. Each round goes through them, advances
    every lane by one read of a new place, and prefetches the place that the lane reads in the next
    round. Nothing branches on what was read: such a branch is mispredicted half of the time, and
    then waits for memory.
    """
    num_contexts = _U(len(contexts_i) - 1)
    contexts_at, leaves_at = _U(contexts_i.ctypes.data), _U(leaves_i.ctypes.data)
    words_at = _U(words.ctypes.data)
    num_lanes = _U(len(cuts) - 1)
    at, stop = cuts[:-1].astype(np.uint64), cuts[1:].astype(np.uint64)
    # The entry that a lane is at, and whether it is the n-gram that ends with the lane's word.
    node, found = np.zeros(num_lanes, np.uint64), np.zeros(num_lanes, np.uint64)
    # The search is from the entry before the first continuation on, which stands for none: the
    # last entry that was not beyond the word, its word, and the number of entries left.
    low, size = np.zeros(num_lanes, np.uint64), np.zeros(num_lanes, np.uint64)
    below = np.zeros(num_lanes, np.int32)
    word, total = np.zeros(num_lanes, np.int32), np.zeros(num_lanes, np.float32)
    searching, ended = np.zeros(num_lanes, np.uint64), np.zeros(num_lanes, np.uint64)
    at_context, at_leaf = np.zeros(num_lanes, np.uint64), np.zeros(num_lanes, np.uint64)
    num_searching = num_contexts_read = num_leaves_read = num_left = _U(0)
    for lane in range(num_lanes):
        if at[lane] < stop[lane]:
            num_left += _ONE
            word[lane] = ids_T[at[lane]]
            found[lane] = _U(nodes[lane] < 0)
            entry = _U(word[lane]) if nodes[lane] < 0 else _U(nodes[lane])
            node[lane] = entry
            if entry < num_contexts:
                at_context[num_contexts_read] = lane
                num_contexts_read += _ONE
            else:
                at_leaf[num_leaves_read] = lane
                num_leaves_read += _ONE
    while num_left > _U(0):
        number, num_searching, num_ended = num_searching, _U(0), _U(0)
        for i in range(number):
            lane = searching[i]
            half = size[lane] >> _ONE
            middle = low[lane] + half
            if seen is not None:
                seen[2][middle >> _W] = 1
            read = words[middle]
            first = choose(read <= word[lane], middle, low[lane])
            below[lane] = choose(read <= word[lane], read, below[lane])
            left = size[lane] - half
            low[lane], size[lane] = first, left
            prefetch(words_at + ((first + (left >> _ONE)) << _U(2)))
            searching[num_searching] = ended[num_ended] = lane
            num_searching += _U(left > _ONE)
            num_ended += _U(left <= _ONE)
        number, num_contexts_read = num_contexts_read, _U(0)
        for i in range(number):
            lane = at_context[i]
            entry = node[lane]
            # Also if it is not the n-gram; the right number is written when that is found.
            logprobs_T[at[lane]] = total[lane] + contexts_f[entry, 2]
            if seen is not None:
                seen[0][entry >> _C] = 1
            total[lane] = choose(found[lane] > _U(0), np.float32(0.0), total[lane])
            if found[lane] > _U(0) and word[lane] == boundary_id:
                node[lane] = entry = _U(boundary_id)
            at[lane] += found[lane]
            found[lane] = 0
            if at[lane] == stop[lane]:
                num_left -= _ONE
                continue
            word[lane] = ids_T[at[lane]]
            if seen is not None:
                seen[0][entry >> _C] = seen[0][(entry + _ONE) >> _C] = 1
            begin = contexts_i[entry, 0]
            left = _U(_span(begin, contexts_i[entry + _ONE, 0], len(words))) + _ONE
            first = _U(begin) - _ONE
            low[lane], size[lane], below[lane] = first, left, -1
            prefetch(words_at + ((first + (left >> _ONE)) << _U(2)))
            searching[num_searching] = ended[num_ended] = lane
            num_searching += _U(left > _ONE)
            num_ended += _U(left <= _ONE)
        number, num_leaves_read = num_leaves_read, _U(0)
        for i in range(number):
            lane = at_leaf[i]
            leaf = node[lane] - num_contexts
            if seen is not None:
                seen[1][leaf >> _L] = 1
            logprobs_T[at[lane]] = total[lane] + leaves_f[leaf, 1]
            following = _suffix(leaves_i[leaf, 0], num_contexts)
            if word[lane] == boundary_id and num_contexts > _U(0):
                following = np.int64(boundary_id)
            total[lane] = 0.0
            at[lane] += _ONE
            if at[lane] == stop[lane]:
                num_left -= _ONE
                continue
            word[lane] = ids_T[at[lane]]
            found[lane] = _U(following < 0)
            entry = _U(word[lane]) if following < 0 else _U(following)
            node[lane] = entry
            prefetch(contexts_at + (entry << _U(4)))
            at_context[num_contexts_read] = at_leaf[num_leaves_read] = lane
            num_contexts_read += _U(entry < num_contexts)
            num_leaves_read += _U(entry >= num_contexts)
        for i in range(num_ended):
            lane = ended[i]
            entry = node[lane]
            is_found = below[lane] == word[lane]
            shorter = _suffix(contexts_i[entry, 1], entry)
            backed_off = total[lane] + contexts_f[entry, 3]
            total[lane] = choose(is_found, total[lane], backed_off)
            found[lane] = _U(is_found) | _U(shorter < 0)
            entry = choose(shorter < 0, _U(word[lane]), _U(shorter))
            entry = choose(is_found, low[lane], entry)
            node[lane] = entry
            is_leaf = entry >= num_contexts
            prefetch(
                choose(
                    is_leaf,
                    leaves_at + ((entry - num_contexts) << _U(3)),
                    contexts_at + (entry << _U(4)),
                )
            )
            at_context[num_contexts_read] = at_leaf[num_leaves_read] = lane
            num_contexts_read += _U(not is_leaf)
            num_leaves_read += _U(is_leaf)


@compiled
def score_rows(
    contexts_i: Array, contexts_f: Floats, leaves_i: Array, leaves_f: Floats, words: Array,
    boundary_id: int, seen: Marks, tokens_BT: Ids, targets_BT: Ids, nodes_B: Nodes,
    logprobs_BT: Floats,
) -> None:  # fmt: skip
    """Score each target; reuse its context if the target is also the next token."""
    for b in range(tokens_BT.shape[0]):
        node, read, after = nodes_B[b], np.int64(-1), np.int64(-1)
        for t in range(tokens_BT.shape[1]):
            word = tokens_BT[b, t]
            if word == read:
                node = after
            else:
                _, node = _read(
                    contexts_i, contexts_f, leaves_i, leaves_f, words, boundary_id, seen, node, word
                )
            read = targets_BT[b, t]
            logprobs_BT[b, t], after = _read(
                contexts_i, contexts_f, leaves_i, leaves_f, words, boundary_id, seen, node, read
            )


@compiled
def distributions(
    contexts_i: Array, contexts_f: Floats, leaves_i: Array, leaves_f: Floats, words: Array,
    boundary_id: int, seen: Marks, nodes_B: Nodes, unigrams_V: Floats, order: int,
    logprobs_BV: Floats,
) -> None:  # fmt: skip
    """Compute the log probability of every token after each context."""
    chain = np.empty(order, np.int64)
    num_contexts = np.int64(len(contexts_i) - 1)
    for b in range(len(nodes_B)):
        node, depth, weight = np.int64(nodes_B[b]), 0, np.float32(0.0)
        while node >= 0:
            if depth == len(chain):
                raise IndexError
            chain[depth] = node
            if seen is not None:
                seen[0][_U(node) >> _C] = seen[0][_U(node + 1) >> _C] = 1
            depth += 1
            weight += contexts_f[node, 3]
            node = _suffix(contexts_i[node, 1], node)
        for token in range(len(unigrams_V)):
            logprobs_BV[b, token] = weight + unigrams_V[token]
        # From the shortest context on, longer n-grams overwrite shorter ones.
        for level in range(depth - 1, -1, -1):
            weight = np.float32(0.0)
            for longer in range(level):
                weight += contexts_f[chain[longer], 3]
            node = chain[level]
            first = np.int64(contexts_i[node, 0])
            size = _span(first, contexts_i[node + 1, 0], len(words))
            end = first + size
            _mark(seen, 2, first, end, _W)
            _mark(seen, 0, first, min(end, num_contexts), _C)
            _mark(seen, 1, max(first - num_contexts, 0), end - num_contexts, _L)
            for child in range(first, end):
                if not 0 <= words[child] < len(unigrams_V):
                    raise IndexError
                if child < num_contexts:
                    own = contexts_f[child, 2]
                else:
                    own = leaves_f[child - num_contexts, 1]
                logprobs_BV[b, words[child]] = weight + own


@compiled
def trace(
    contexts_i: Array, contexts_f: Floats, leaves_i: Array, leaves_f: Floats, words: Array,
    boundary_id: int, seen: Marks, level_starts: Nodes, ids_T: Ids, ngrams: Nodes, contexts: Nodes,
) -> None:  # fmt: skip
    """Record the n-gram of each length, and its context, at each token of a text."""
    node = np.int64(boundary_id if len(contexts_i) > 1 else -1)
    for t in range(len(ids_T)):
        word = ids_T[t]
        ngrams[t, 0] = word
        context = node
        while context >= 0:
            length = 1
            while level_starts[length] <= context:
                length += 1
            contexts[t, length] = context
            ngrams[t, length] = _find(contexts_i, words, seen, context, word)
            context = _suffix(contexts_i[context, 1], context)
        _, node = _read(
            contexts_i, contexts_f, leaves_i, leaves_f, words, boundary_id, seen, node, word
        )


@compiled
def link(
    contexts_i: Array, contexts_f: Floats, leaves_i: Array, leaves_f: Floats, words: Array,
    boundary_id: int, seen: Marks, start: Scalar, end: Scalar,
) -> None:  # fmt: skip
    """Set the suffixes of the continuations of contexts `start` to `end` - 1."""
    num_contexts = np.int64(len(contexts_i) - 1)
    for context in range(start, end):
        for ngram in range(contexts_i[context, 0], contexts_i[context + 1, 0]):
            word = np.int64(words[ngram])
            shorter, found = np.int64(contexts_i[context, 1]), np.int64(-1)
            while shorter >= 0 and found < 0:
                found = _find(contexts_i, words, seen, shorter, word)
                shorter = np.int64(contexts_i[shorter, 1])
            suffix = found if found >= 0 else word
            if ngram >= num_contexts:
                leaves_i[ngram - num_contexts, 0] = suffix
                continue
            contexts_i[ngram, 1] = suffix
            if np.isnan(contexts_f[ngram, 2]):
                shorter = np.int64(contexts_i[context, 1])
                lower, _ = _read(
                    contexts_i,
                    contexts_f,
                    leaves_i,
                    leaves_f,
                    words,
                    boundary_id,
                    seen,
                    shorter,
                    word,
                )
                contexts_f[ngram, 2] = contexts_f[context, 3] + lower
