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

from elman.ngrams.compiled import Scalar, compiled, inlined
from elman.ngrams.interpolation import Floats
from elman.ngrams.trie import Array

Ids = NDArray[Any]
Nodes = NDArray[np.int64]
Marks = tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]] | None
_U = np.uint64
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

    Each lane advances by one comparison of its binary search at a time. While one waits for memory
    the others go on, which is more than twice as fast as one lane after the other.
    """
    num_contexts = np.int64(len(contexts_i) - 1)
    at, stop, node = cuts[:-1].copy(), cuts[1:], nodes.copy()
    # Unsigned indices: numba tests signed ones for being negative at each use.
    low, size = np.zeros(len(at), np.uint64), np.zeros(len(at), np.uint64)
    word, total = np.zeros(len(at), np.int32), np.zeros(len(at), np.float32)
    num_left = 0
    for lane in range(len(at)):
        if at[lane] < stop[lane]:
            num_left += 1
            word[lane] = ids_T[at[lane]]
            if node[lane] >= 0:
                if seen is not None:
                    seen[0][_U(node[lane]) >> _C] = seen[0][_U(node[lane] + 1) >> _C] = 1
                low[lane] = contexts_i[node[lane], 0]
                size[lane] = _span(
                    contexts_i[node[lane], 0], contexts_i[node[lane] + 1, 0], len(words)
                )
    while num_left > 0:
        for lane in range(np.uint64(len(at))):
            left = size[lane]
            if left > _U(1):
                half = left >> _U(1)
                middle = low[lane] + half
                if seen is not None:
                    seen[2][middle >> _W] = 1
                low[lane] = middle if words[middle] <= word[lane] else low[lane]
                size[lane] = left - half
                continue
            if at[lane] >= stop[lane]:
                continue
            if seen is not None and left == _U(1):
                seen[2][low[lane] >> _W] = 1
            if left == _U(1) and words[low[lane]] == word[lane]:
                ngram = np.int64(low[lane])
            else:
                if node[lane] >= 0:
                    total[lane] += contexts_f[node[lane], 3]
                    node[lane] = _suffix(contexts_i[node[lane], 1], node[lane])
                    if node[lane] >= 0:
                        if seen is not None:
                            seen[0][_U(node[lane]) >> _C] = seen[0][_U(node[lane] + 1) >> _C] = 1
                        low[lane] = contexts_i[node[lane], 0]
                        size[lane] = _span(
                            contexts_i[node[lane], 0], contexts_i[node[lane] + 1, 0], len(words)
                        )
                        continue
                ngram = np.int64(word[lane])
            if seen is not None:
                if ngram < num_contexts:
                    seen[0][_U(ngram) >> _C] = 1
                else:
                    seen[1][_U(ngram - num_contexts) >> _L] = 1
            if ngram < num_contexts:
                own, following = contexts_f[ngram, 2], ngram
            else:
                own = leaves_f[ngram - num_contexts, 1]
                following = _suffix(leaves_i[ngram - num_contexts, 0], num_contexts)
            if word[lane] == boundary_id and num_contexts > 0:
                following = np.int64(boundary_id)
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
            logprobs_T[at[lane]] = total[lane] + own
            at[lane] += 1
            node[lane], total[lane], size[lane] = following, 0.0, 0
            if at[lane] == stop[lane]:
                num_left -= 1
                continue
            word[lane] = ids_T[at[lane]]
            if following >= 0:
                low[lane] = contexts_i[following, 0]
                size[lane] = _span(
                    contexts_i[following, 0], contexts_i[following + 1, 0], len(words)
                )


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
