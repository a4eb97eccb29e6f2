"""The back-off model: n-grams with log probabilities, contexts with back-off weights.

    log P(w | context) = logprob(context w)                              if that n-gram is stored
                       = backoff(context) + log P(w | shorter context)   otherwise

Every smoothing method and every ARPA file takes this form. The n-grams of all lengths are one
sequence of entries, shortest first, each length sorted. Entry i < `vocab_size` is the single token
i; the continuations of entry i are the entries from its `first_child` up to that of entry i + 1;
its `suffix` is the longest stored n-gram that ends it (-1 for a single token). A context is an
entry, or -1 for the empty context. Scoring a text walks from entry to entry.

The fields of an entry are adjacent in memory, because a walk through a large model is bound by
memory latency.

Logarithms are natural. B batch, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from elman.base.threads import in_order
from elman.ngrams import walking
from elman.ngrams.interpolation import Estimate, Floats
from elman.ngrams.model import NgramModel, check_ids, not_a_trie
from elman.ngrams.trie import Array, CountTrie, check_number
from elman.ngrams.walking import Ids, Nodes

FIRST_CHILD, SUFFIX, LOGPROB, BACKOFF = 0, 1, 2, 3
"""The columns of `contexts`."""
LEAF_SUFFIX, LEAF_LOGPROB = 0, 1
"""The columns of `leaves`."""


@dataclass(kw_only=True)
class BackoffModel(NgramModel):
    contexts: Array
    """(contexts + 1, 4) for all but the longest n-grams: first continuation, suffix, and the
    float32 bits of log probability and log back-off weight. The extra row ends the continuations of
    the last context."""
    leaves: Array
    """(longest n-grams, 2) suffix, and the float32 bits of the log probability."""
    words: Array
    """(n-grams,) the last token of each."""

    loops: ClassVar[Any] = walking

    @property
    def logprob(self) -> Floats:
        """(n-grams,) log P(last token | the others), copied."""
        inner = self.contexts.view(np.float32)[:-1, LOGPROB]
        return np.concatenate([inner, self.leaves.view(np.float32)[:, LEAF_LOGPROB]])

    @property
    def backoff(self) -> Floats:
        """(contexts,) log back-off weights."""
        return self.contexts.view(np.float32)[:-1, BACKOFF]

    @property
    def first_child(self) -> Array:
        return self.contexts[:, FIRST_CHILD]

    @property
    def layout(self) -> str:
        return "plain"

    def plain(self) -> BackoffModel:
        self.check()
        return self

    def bytes_up_to(self, length: int) -> int:
        contexts, leaves = 4 * self.contexts.shape[1] + 4, 4 * self.leaves.shape[1] + 4
        numbers = self.num_ngrams
        return int(sum(numbers[: length - 1]) * contexts + numbers[length - 1] * leaves)

    def context_lengths(self, contexts_BC: Ids) -> Nodes:
        return np.searchsorted(self.level_starts, self.after(contexts_BC), side="right")

    @cached_property
    def unigrams(self) -> Floats:
        """(V,) the log probabilities of the single tokens, contiguous."""
        if self.file is not None:
            self.file.verify("leaves" if self.order == 1 else "contexts", slice(self.vocab_size))
        if self.order == 1:
            return self.leaves.view(np.float32)[:, LEAF_LOGPROB].copy()
        return self.contexts.view(np.float32)[: self.vocab_size, LOGPROB].copy()

    def trace(self, ids_T: Ids) -> tuple[Nodes, Nodes]:
        """Return, as two (T, order) arrays, the n-gram of each length that ends at each token and
        its context; -1 if the model has none, and for the context of a single token.
        """
        check_ids(ids_T, self.vocab_size)
        self.check_unchanged()
        ngrams = np.full((len(ids_T), self.order), -1, np.int64)
        contexts = np.full((len(ids_T), self.order), -1, np.int64)
        starts = np.array(self.level_starts)
        self._run(walking.trace, starts, np.ascontiguousarray(ids_T, np.int64), ngrams, contexts)
        return ngrams, contexts

    def link(self) -> None:
        """Compute all suffixes; replace NaN log probabilities by those of backing off."""
        for start, end in pairwise(self.level_starts[:-1]):
            self._run(walking.link, start, end)

    def check(self) -> None:
        """Raise an error if the file is damaged or the entries do not form a trie.

        Walks check every step, but converting a whole model to another format does not.
        """
        super().check()
        first_child, starts = self.first_child, self.level_starts
        if (
            first_child[starts[:-1]].tolist() != starts[1:]
            or (first_child[1:] < first_child[:-1]).any()
            or int(self.words.min()) < 0
            or int(self.words.max()) >= self.vocab_size
        ):
            raise not_a_trie()

    def _arrays(self) -> tuple[Any, ...]:
        floats = self.contexts.view(np.float32), self.leaves.view(np.float32)
        return self.contexts, floats[0], self.leaves, floats[1], self.words, self.boundary_id

    def _no_contexts(self, number: int) -> Nodes:
        return np.full(number, -1, np.int64)

    @classmethod
    def assemble(
        cls, trie: CountTrie, estimate: Estimate, about: dict[str, Any] | None = None
    ) -> BackoffModel:
        """Build the model of a smoothed trie, in memory."""
        return cls(
            contexts=np.concatenate(list(parts(trie, estimate, "contexts"))),
            leaves=np.concatenate([np.empty((0, 2), np.int32), *parts(trie, estimate, "leaves")]),
            words=np.concatenate(list(parts(trie, estimate, "words"))),
            level_starts=level_starts(trie),
            boundary_id=trie.boundary_id,
            about=about or {},
        )


def level_starts(trie: CountTrie) -> list[int]:
    """Return the `level_starts` of this trie's model."""
    starts = [0, *np.cumsum([len(level) for level in trie.levels]).tolist()]
    check_number(starts[-1])
    return starts


def parts(trie: CountTrie, estimate: Estimate, name: str) -> Iterator[Array]:
    """Yield one of the model's arrays in pieces, so that it is not in memory twice."""
    starts, size = level_starts(trie), 2 * trie.room.piece

    def rows(piece: tuple[int, int]) -> Array:
        length, first = piece
        level, some = trie.levels[length - 1], slice(first, first + size)
        with np.errstate(divide="ignore"):
            logprob = np.log(estimate.probs[length - 1][some])
            if length > 1:
                suffix = level.suffix[some] + np.int32(starts[length - 2])
            else:
                suffix = np.full(len(logprob), -1, np.int32)
            if length == trie.order:
                return leaf_rows(suffix, logprob)
            backoff = np.log(estimate.backoffs[length - 1][some])
        first_child = level.first_child[:-1][some] + np.int32(starts[length])
        return context_rows(first_child, suffix, logprob, backoff)

    if name == "words":
        for level in trie.levels:
            for first in range(0, len(level), size):
                yield level.words[first : first + size]
                trie.room.relieve()
        return
    lengths = range(1, trie.order) if name == "contexts" else [trie.order]
    pieces = [(n, first) for n in lengths for first in range(0, len(trie.levels[n - 1]), size)]
    for made in in_order(rows, pieces):
        yield made
        trie.room.relieve()
    if name == "contexts":
        end = np.array([starts[-1]], np.int32)
        yield context_rows(end, -np.ones(1, np.int32), np.zeros(1, np.float32), 0)


def context_rows(
    first_child: NDArray[Any], suffix: NDArray[Any], logprob: Floats, backoff: Any
) -> Array:
    rows = np.empty((len(suffix), 4), np.int32)
    rows[:, FIRST_CHILD], rows[:, SUFFIX] = first_child, suffix
    rows.view(np.float32)[:, LOGPROB], rows.view(np.float32)[:, BACKOFF] = logprob, backoff
    return rows


def leaf_rows(suffix: NDArray[Any], logprob: Floats) -> Array:
    rows = np.empty((len(suffix), 2), np.int32)
    rows[:, LEAF_SUFFIX] = suffix
    rows.view(np.float32)[:, LEAF_LOGPROB] = logprob
    return rows
