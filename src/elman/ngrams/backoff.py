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

import threading
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from elman.base.tensor_files import FillRows
from elman.ngrams import walking
from elman.ngrams.interpolation import Estimate, Floats
from elman.ngrams.model import NgramModel, check_ids, not_a_trie
from elman.ngrams.trie import Array, CountTrie, check_number
from elman.ngrams.walking import Ids, Nodes

FIRST_CHILD, SUFFIX, LOGPROB, BACKOFF = 0, 1, 2, 3
"""The columns of `contexts`."""
LEAF_SUFFIX, LEAF_LOGPROB = 0, 1
"""The columns of `leaves`."""
_AT_ONCE = 1 << 16
"""Rows that are computed at a time."""


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
        starts = level_starts(trie)
        shapes = {
            "contexts": (starts[-2] + 1, 4),
            "leaves": (starts[-1] - starts[-2], 2),
            "words": (starts[-1],),
        }
        arrays: dict[str, Any] = {name: np.empty(shape, np.int32) for name, shape in shapes.items()}
        for name, array in arrays.items():
            rows_of(trie, estimate, name)(0, len(array), array)
        return cls(
            **arrays,
            level_starts=starts,
            boundary_id=trie.boundary_id,
            about=about or {},
        )


def level_starts(trie: CountTrie) -> list[int]:
    """Return the `level_starts` of this trie's model."""
    starts = [0, *np.cumsum([len(level) for level in trie.levels]).tolist()]
    check_number(starts[-1])
    return starts


def rows_of(trie: CountTrie, estimate: Estimate, name: str) -> FillRows:
    """Return the function that fills some rows of one of the model's arrays."""
    starts = level_starts(trie)
    lengths = {
        "contexts": range(1, trie.order),
        "leaves": [trie.order],
        "words": range(1, trie.order + 1),
    }[name]
    offset = starts[lengths[0] - 1] if lengths else 0

    def fill(first: int, end: int, rows: Array) -> None:
        for length in lengths:
            begin = starts[length - 1] - offset
            low, high = max(first, begin), min(end, starts[length] - offset)
            if low < high:
                some, out = slice(low - begin, high - begin), rows[low - first : high - first]
                if name == "words":
                    out[:] = trie.levels[length - 1].words[some]
                else:
                    for at in range(0, len(out), _AT_ONCE):
                        part = slice(some.start + at, min(some.start + at + _AT_ONCE, some.stop))
                        fill_level(length, part, out[at : at + _AT_ONCE])
        if name == "contexts" and end > starts[-2]:  # ends the continuations of the last one
            rows[-1, FIRST_CHILD], rows[-1, SUFFIX], rows[-1, LOGPROB:] = starts[-1], -1, 0
        trie.room.relieve()

    def fill_level(length: int, some: slice, rows: Array) -> None:
        level, floats = trie.levels[length - 1], rows.view(np.float32)
        # NumPy is fastest, and always the same, on numbers without gaps.
        logs = _room()[: len(rows)]
        suffix = LEAF_SUFFIX if length == trie.order else SUFFIX
        if length == 1:
            rows[:, suffix] = -1
        else:
            np.add(level.suffix[some], np.int32(starts[length - 2]), out=rows[:, suffix])
        with np.errstate(divide="ignore"):
            np.log(estimate.probs[length - 1][some], out=logs)
            if length == trie.order:
                floats[:, LEAF_LOGPROB] = logs
                return
            floats[:, LOGPROB] = logs
            np.log(estimate.backoffs[length - 1][some], out=logs)
            floats[:, BACKOFF] = logs
        first_child = level.first_child[:-1][some]
        np.add(first_child, np.int32(starts[length]), out=rows[:, FIRST_CHILD])

    return fill


_rooms = threading.local()


def _room() -> Floats:
    """Return memory that this thread has used before: new memory takes longer than logarithms."""
    if not hasattr(_rooms, "floats"):
        _rooms.floats = np.empty(_AT_ONCE, np.float32)
    found: Floats = _rooms.floats
    return found


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
