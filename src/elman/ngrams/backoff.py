"""The finished model: n-grams with log probabilities, contexts with back-off weights.

    log P(w | context) = logprob(context w)                              where that n-gram is stored
                       = backoff(context) + log P(w | shorter context)   where it is not

Every smoothing comes to this form, and so does every ARPA file. The n-grams of all lengths stand in
one sequence, the shortest first and each length sorted: entry i < `vocab_size` is the single token
i, the continuations of entry i are the entries from `first_child[i]` to before
`first_child[i + 1]`, and `suffix[i]` is the longest stored n-gram that ends entry i (-1 for a
single token). A context is an entry, or -1 for the empty one. Reading a text is then a walk from
entry to entry.

Logarithms are natural. V vocabulary, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elman.base.errors import ElmanError
from elman.ngrams.compiled import Scalar, compiled, in_threads
from elman.ngrams.interpolation import Estimate, Floats
from elman.ngrams.trie import CountTrie

Index = NDArray[Any]
Ids = NDArray[Any]

ARRAYS = ("first_child", "suffix", "words", "logprob", "backoff")
"""The arrays that a model consists of."""

# Tokens that one thread scores at a time.
_STRETCH = 1 << 16


@dataclass
class BackoffModel:
    """N-grams in back-off form."""

    first_child: Index
    """(contexts + 1,) where each context's continuations begin."""
    suffix: Index
    """(n-grams,) the longest other entry that ends each n-gram."""
    words: Index
    """(n-grams,) the last token of each."""
    logprob: Floats
    """(n-grams,) the log probability of the last token after the others."""
    backoff: Floats
    """(contexts,) the log weight of the shorter context; the longest n-grams are no contexts."""
    level_starts: list[int]
    """Where the n-grams of length 1, 2, ... begin, and at the end their number."""
    boundary_id: int
    """The token that begins and ends lines."""
    about: dict[str, Any] = field(default_factory=dict)
    """How the model was made; `normalised` is False where its scores are not probabilities."""

    @property
    def order(self) -> int:
        """The length of the longest n-grams."""
        return len(self.level_starts) - 1

    @property
    def vocab_size(self) -> int:
        """The number of token ids."""
        return self.level_starts[1]

    @property
    def num_ngrams(self) -> list[int]:
        """How many n-grams there are of length 1, 2, ..."""
        return [end - start for start, end in pairwise(self.level_starts)]

    def contexts(self, tokens_BC: Ids) -> Index:
        """(B,) the contexts after reading each row of tokens, from nothing; -1 reads as nothing."""
        nodes_B = np.empty(len(tokens_BC), np.int64)
        _walk(*self._arrays(), np.ascontiguousarray(tokens_BC, np.int64), nodes_B)
        return nodes_B

    def score_rows(self, tokens_BT: Ids, targets_BT: Ids, contexts_B: Index) -> Floats:
        """(B, T) the log probability of each target after its row's tokens up to there."""
        logprobs_BT = np.empty(tokens_BT.shape, np.float32)
        _score_rows(
            *self._arrays(),
            np.ascontiguousarray(tokens_BT, np.int64),
            np.ascontiguousarray(targets_BT, np.int64),
            contexts_B,
            logprobs_BT,
        )
        return logprobs_BT

    def score(self, ids_T: Ids, num_threads: int | None = None) -> Floats:
        """(T,) the log probability of each token of a text that follows a boundary."""
        logprobs_T = np.empty(len(ids_T), np.float32)

        def score(span: tuple[int, int]) -> None:
            start, end = span
            before = ids_T[max(0, start - self.order) : start]
            if start < self.order:
                before = np.concatenate([[self.boundary_id], before])
            node = self.contexts(before[None])[0]
            _score_text(*self._arrays(), ids_T[start:end], node, logprobs_T[start:end])

        in_threads(score, pairwise([*range(0, len(ids_T), _STRETCH), len(ids_T)]), num_threads)
        return logprobs_T

    def distributions(self, contexts_B: Index) -> Floats:
        """(B, V) the log probability of every token after each context."""
        logprobs_BV = np.empty((len(contexts_B), self.vocab_size), np.float32)
        _distributions(*self._arrays(), contexts_B, logprobs_BV)
        return logprobs_BV

    def trace(self, ids_T: Ids) -> tuple[Index, Index]:
        """(T, order) twice: which n-gram of each length ends at each token, and its context.

        -1 where the model has none, and for the context of a single token.
        """
        ngrams = np.full((len(ids_T), self.order), -1, np.int64)
        contexts = np.full((len(ids_T), self.order), -1, np.int64)
        starts = np.array(self.level_starts)
        _trace(*self._arrays(), starts, np.ascontiguousarray(ids_T, np.int64), ngrams, contexts)
        return ngrams, contexts

    def _arrays(self) -> tuple[Any, ...]:
        arrays = self.first_child, self.suffix, self.words, self.logprob, self.backoff
        return *arrays, self.boundary_id

    @classmethod
    def assemble(
        cls, trie: CountTrie, estimate: Estimate, about: dict[str, Any] | None = None
    ) -> BackoffModel:
        """Put a smoothed trie into the one sequence, in memory."""
        starts = level_starts(trie)
        arrays = {name: np.concatenate(list(parts(trie, estimate, name))) for name in ARRAYS}
        return cls(**arrays, level_starts=starts, boundary_id=trie.boundary_id, about=about or {})


def longest_suffixes(model: BackoffModel) -> None:
    """Find the suffix links of a model that has none."""
    for start, end in pairwise(model.level_starts[:-1]):
        _link(model.first_child, model.suffix, model.words, start, end)


def back_off_probs(model: BackoffModel) -> None:
    """Give n-grams without a probability (not a number) the one that backing off gives them."""
    for start, end in pairwise(model.level_starts[:-1]):
        _fill(*model._arrays(), start, end)


def level_starts(trie: CountTrie) -> list[int]:
    """Where the n-grams of each length will begin in a model of this trie."""
    return [0, *np.cumsum([len(level) for level in trie.levels]).tolist()]


def parts(trie: CountTrie, estimate: Estimate, name: str) -> Iterator[NDArray[Any]]:
    """One of the model's arrays, level by level: all of it need not be in memory twice."""
    starts = level_starts(trie)
    index = np.dtype(np.int32 if starts[-1] < 2**31 else np.int64)
    if name == "first_child":
        for level, start in zip(trie.levels[:-1], starts[1:], strict=False):
            yield level.first_child[:-1].astype(index) + index.type(start)
        yield np.array(starts[-1:], index)
    elif name == "suffix":
        yield np.full(trie.vocab_size, -1, index)
        for level, start in zip(trie.levels[1:], starts, strict=False):
            yield level.suffix.astype(index) + index.type(start)
    elif name == "words":
        yield from (level.words for level in trie.levels)
    elif name in ("logprob", "backoff"):
        with np.errstate(divide="ignore"):
            values = estimate.probs if name == "logprob" else estimate.backoffs
            yield from (np.log(level) for level in values)
            if not values:
                yield np.empty(0, np.float32)
    else:
        raise ElmanError(f"a model has no array called {name}")


@compiled
def _find(first_child: Index, words: Index, context: Scalar, word: Scalar) -> Scalar:
    """The n-gram that `word` makes with a context, or -1."""
    low, high = first_child[context], first_child[context + 1]
    while low < high:
        middle = (low + high) >> 1
        if words[middle] < word:
            low = middle + 1
        else:
            high = middle
    return low if low < first_child[context + 1] and words[low] == word else -1


@compiled
def _read(
    first_child: Index,
    suffix: Index,
    words: Index,
    logprob: Floats,
    backoff: Floats,
    boundary_id: Scalar,
    context: Scalar,
    word: Scalar,
) -> tuple[Scalar, Scalar]:
    """The log probability of a word after a context, and the context after it."""
    total: Scalar = np.float32(0.0)
    ngram = np.int64(-1)
    while context >= 0:
        ngram = _find(first_child, words, context, word)
        if ngram >= 0:
            break
        total += backoff[context]
        context = suffix[context]
    if ngram < 0:
        ngram = np.int64(word)
    total += logprob[ngram]
    num_contexts = len(backoff)
    if word == boundary_id and num_contexts > 0:
        return total, np.int64(boundary_id)
    following = ngram if ngram < num_contexts else np.int64(suffix[ngram])
    # A context with neither continuations nor a weight gives what the shorter one gives.
    while (
        following >= 0
        and first_child[following] == first_child[following + 1]
        and backoff[following] == 0
    ):
        following = np.int64(suffix[following])
    return total, following


@compiled
def _walk(
    first_child: Index,
    suffix: Index,
    words: Index,
    logprob: Floats,
    backoff: Floats,
    boundary_id: Scalar,
    tokens_BC: Ids,
    nodes_B: Index,
) -> None:
    for b in range(tokens_BC.shape[0]):
        node = np.int64(-1)
        for c in range(tokens_BC.shape[1]):
            if tokens_BC[b, c] < 0:
                node = np.int64(-1)
            else:
                _, node = _read(
                    first_child, suffix, words, logprob, backoff, boundary_id,
                    node, tokens_BC[b, c],
                )  # fmt: skip
        nodes_B[b] = node


@compiled
def _score_text(
    first_child: Index,
    suffix: Index,
    words: Index,
    logprob: Floats,
    backoff: Floats,
    boundary_id: Scalar,
    ids_T: Ids,
    node: Scalar,
    logprobs_T: Floats,
) -> None:
    for t in range(len(ids_T)):
        logprobs_T[t], node = _read(
            first_child, suffix, words, logprob, backoff, boundary_id, node, np.int64(ids_T[t])
        )


@compiled
def _score_rows(
    first_child: Index,
    suffix: Index,
    words: Index,
    logprob: Floats,
    backoff: Floats,
    boundary_id: Scalar,
    tokens_BT: Ids,
    targets_BT: Ids,
    nodes_B: Index,
    logprobs_BT: Floats,
) -> None:
    """Score each target; where it is also the next token to read, the walk is already there."""
    for b in range(tokens_BT.shape[0]):
        node, read, after = nodes_B[b], np.int64(-1), np.int64(-1)
        for t in range(tokens_BT.shape[1]):
            if tokens_BT[b, t] == read:
                node = after
            else:
                _, node = _read(
                    first_child, suffix, words, logprob, backoff, boundary_id,
                    node, tokens_BT[b, t],
                )  # fmt: skip
            read = targets_BT[b, t]
            logprobs_BT[b, t], after = _read(
                first_child, suffix, words, logprob, backoff, boundary_id, node, read
            )


@compiled
def _distributions(
    first_child: Index,
    suffix: Index,
    words: Index,
    logprob: Floats,
    backoff: Floats,
    boundary_id: Scalar,
    nodes_B: Index,
    logprobs_BV: Floats,
) -> None:
    vocab_size = logprobs_BV.shape[1]
    # A chain of contexts is at most as long as the model's order, which no array tells directly.
    chain = np.empty(64, np.int64)
    for b in range(len(nodes_B)):
        node, depth, weight = np.int64(nodes_B[b]), 0, np.float32(0.0)
        while node >= 0:
            if depth == len(chain):
                longer = np.empty(2 * len(chain), np.int64)
                longer[:depth] = chain
                chain = longer
            chain[depth] = node
            depth += 1
            weight += backoff[node]
            node = np.int64(suffix[node])
        for token in range(vocab_size):
            logprobs_BV[b, token] = weight + logprob[token]
        # From the shortest context on, longer n-grams take the place of shorter ones.
        for level in range(depth - 1, -1, -1):
            weight = np.float32(0.0)
            for longer_level in range(level):
                weight += backoff[chain[longer_level]]
            node = chain[level]
            for child in range(first_child[node], first_child[node + 1]):
                logprobs_BV[b, words[child]] = weight + logprob[child]


@compiled
def _trace(
    first_child: Index,
    suffix: Index,
    words: Index,
    logprob: Floats,
    backoff: Floats,
    boundary_id: Scalar,
    level_starts: Index,
    ids_T: Ids,
    ngrams: Index,
    contexts: Index,
) -> None:
    node = np.int64(boundary_id if len(backoff) else -1)
    for t in range(len(ids_T)):
        word = ids_T[t]
        ngrams[t, 0] = word
        context = node
        while context >= 0:
            length = 1
            while level_starts[length] <= context:
                length += 1
            contexts[t, length] = context
            ngrams[t, length] = _find(first_child, words, context, word)
            context = np.int64(suffix[context])
        _, node = _read(first_child, suffix, words, logprob, backoff, boundary_id, node, word)


@compiled
def _link(first_child: Index, suffix: Index, words: Index, start: Scalar, end: Scalar) -> None:
    for context in range(start, end):
        for ngram in range(first_child[context], first_child[context + 1]):
            shorter, found = np.int64(suffix[context]), np.int64(-1)
            while shorter >= 0 and found < 0:
                found = _find(first_child, words, shorter, words[ngram])
                shorter = np.int64(suffix[shorter])
            suffix[ngram] = found if found >= 0 else words[ngram]


@compiled
def _fill(
    first_child: Index,
    suffix: Index,
    words: Index,
    logprob: Floats,
    backoff: Floats,
    boundary_id: Scalar,
    start: Scalar,
    end: Scalar,
) -> None:
    for context in range(start, end):
        for ngram in range(first_child[context], first_child[context + 1]):
            if np.isnan(logprob[ngram]):
                lower, _ = _read(
                    first_child, suffix, words, logprob, backoff, boundary_id,
                    np.int64(suffix[context]), np.int64(words[ngram]),
                )  # fmt: skip
                logprob[ngram] = backoff[context] + lower
