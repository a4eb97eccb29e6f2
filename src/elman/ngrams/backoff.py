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

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elman.base.errors import ElmanError, UsageError
from elman.base.threads import default_threads, in_order, in_threads
from elman.ngrams import walking
from elman.ngrams.interpolation import Estimate, Floats
from elman.ngrams.mapped import ArrayFile
from elman.ngrams.trie import MEMORY, Array, CountTrie, Room, check_number
from elman.ngrams.walking import Ids, Nodes

FIRST_CHILD, SUFFIX, LOGPROB, BACKOFF = 0, 1, 2, 3
"""The columns of `contexts`."""
LEAF_SUFFIX, LEAF_LOGPROB = 0, 1
"""The columns of `leaves`."""

# The lanes that a piece of work interleaves: 32 were no faster than 16, 8 slightly slower.
_NUM_LANES = 16
_LEAST_PIECE = 1 << 13


@dataclass
class BackoffModel:
    contexts: Array
    """(contexts + 1, 4) for all but the longest n-grams: first continuation, suffix, and the
    float32 bits of log probability and log back-off weight. The extra row ends the continuations of
    the last context."""
    leaves: Array
    """(longest n-grams, 2) suffix, and the float32 bits of the log probability."""
    words: Array
    """(n-grams,) the last token of each."""
    level_starts: list[int]
    """(order + 1,) index of the first n-gram of each length; the last item is their number."""
    boundary_id: int
    """The token that begins and ends lines."""
    about: dict[str, Any] = field(default_factory=dict)
    """How the model was made; `normalised` is False if its scores are not probabilities."""
    file: ArrayFile | None = field(default=None, repr=False, compare=False)
    """The file that has the arrays. The methods verify what they read of it; whoever reads the
    arrays directly calls `check` first."""
    room: Room = field(default=MEMORY, repr=False, compare=False)
    """Keeps to a limit of memory while the arrays are read."""

    @property
    def order(self) -> int:
        return len(self.level_starts) - 1

    @property
    def vocab_size(self) -> int:
        return self.level_starts[1]

    @property
    def num_ngrams(self) -> list[int]:
        """The number of n-grams of length 1, 2, ..."""
        return [end - start for start, end in pairwise(self.level_starts)]

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

    def after(self, tokens_BC: Ids) -> Nodes:
        """(B,) the context after each row of tokens; -1 resets to the empty context."""
        check_ids(tokens_BC, self.vocab_size, least=-1)
        self.check_unchanged()
        nodes_B = np.full(len(tokens_BC), -1, np.int64)
        self._run(walking.walk, np.ascontiguousarray(tokens_BC, np.int64), nodes_B)
        return nodes_B

    def undefined(self, contexts_BC: Ids) -> NDArray[np.bool_] | None:
        """(B,) whether the estimate after each context is 0/0; None of a model that has none.

        That is so under maximum likelihood if nothing was seen after the last order - 1 tokens, or
        after those since the last boundary. The model then uses the longest shorter context.
        """
        if not self.can_be_undefined:
            return None
        contexts_BC = contexts_BC[:, max(0, contexts_BC.shape[1] - self.order + 1) :]
        lengths_B = self.context_lengths(contexts_BC)
        places = np.arange(contexts_BC.shape[1])
        # Before a boundary, and where there is no token, a context has nothing.
        begins = np.where(contexts_BC == self.boundary_id, places, 0)
        begins = np.maximum(begins, np.where(contexts_BC < 0, places + 1, 0))
        wanted_B = contexts_BC.shape[1] - begins.max(axis=1, initial=0)
        return np.asarray(lengths_B < wanted_B)

    @property
    def can_be_undefined(self) -> bool:
        return self.about.get("smoothing") == "maximum-likelihood" and self.order > 1

    def context_lengths(self, contexts_BC: Ids) -> Nodes:
        """(B,) length of the longest end of each context that something was seen after."""
        return np.searchsorted(self.level_starts, self.after(contexts_BC), side="right")

    def score_rows(self, tokens_BT: Ids, targets_BT: Ids, contexts_BC: Ids) -> Floats:
        """(B, T) log P(target | the row's context and tokens up to the same position)."""
        nodes_B = self.after(contexts_BC)
        tokens_BT = np.ascontiguousarray(tokens_BT, np.int64)
        targets_BT = np.ascontiguousarray(targets_BT, np.int64)
        check_ids(tokens_BT, self.vocab_size)
        check_ids(targets_BT, self.vocab_size)
        logprobs_BT = np.empty(tokens_BT.shape, np.float32)
        if not logprobs_BT.size:
            return logprobs_BT
        if np.array_equal(tokens_BT[:, 1:], targets_BT[:, :-1]):  # running text
            self._run(walking.walk, np.ascontiguousarray(tokens_BT[:, :1]), nodes_B)
            cuts = np.arange(len(targets_BT) + 1) * targets_BT.shape[1]
            self._run(walking.score_lanes, targets_BT.ravel(), cuts, nodes_B, logprobs_BT.ravel())
        else:
            self._run(walking.score_rows, tokens_BT, targets_BT, nodes_B, logprobs_BT)
        return logprobs_BT

    def score(self, ids_T: Ids, num_threads: int | None = None) -> Floats:
        """(T,) the log probability of each token of a text that begins after a boundary."""
        check_ids(ids_T, self.vocab_size)
        logprobs_T = np.empty(len(ids_T), np.float32)

        def score(span: tuple[int, int]) -> None:
            cuts = np.linspace(*span, _NUM_LANES + 1).astype(np.int64)
            places = cuts[:-1, None] + np.arange(-self.order, 0)
            # Signed, to hold -1: ids may be of an unsigned type.
            before = ids_T[np.maximum(places, 0)].astype(np.int64)
            before[places < 0] = -1
            before[places == -1] = self.boundary_id
            self._run(walking.score_lanes, ids_T, cuts, self.after(before), logprobs_T)
            self.room.relieve()

        # Several pieces for each thread, so that all end at about the same time.
        share = len(ids_T) // (4 * (num_threads or default_threads()))
        size = min(self.room.piece, max(share, _LEAST_PIECE))
        cuts = [*range(0, len(ids_T), size), len(ids_T)]
        in_threads(score, pairwise(cuts), num_threads)
        self.check_unchanged()  # a long text takes a while
        return logprobs_T

    def distributions(self, contexts_BC: Ids) -> Floats:
        """(B, V) log P(token | context) of every token."""
        nodes_B = self.after(contexts_BC)
        logprobs_BV = np.empty((len(nodes_B), self.vocab_size), np.float32)
        chain = np.empty(self.order, np.int64)
        self._run(walking.distributions, nodes_B, self.unigrams, chain, logprobs_BV)
        return logprobs_BV

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
        if self.file is not None:
            self.file.verify()
        first_child, starts = self.first_child, self.level_starts
        if (
            first_child[starts[:-1]].tolist() != starts[1:]
            or (first_child[1:] < first_child[:-1]).any()
            or int(self.words.min()) < 0
            or int(self.words.max()) >= self.vocab_size
        ):
            raise _damaged()

    def check_unchanged(self) -> None:
        """Raise an error if the model's file was written to since it was opened."""
        if self.file is not None:
            self.file.check_unchanged()

    def _run(self, loop: Callable[..., None], *arguments: Any) -> None:
        """Call a loop of `walking` on the model's arrays."""
        floats = self.contexts.view(np.float32), self.leaves.view(np.float32)
        before = self.contexts, floats[0], self.leaves, floats[1], self.words, self.boundary_id
        try:
            if self.file is None:
                loop(*before, None, *arguments)
            else:
                self.file.run(loop, before, arguments)
        except IndexError as error:
            raise _damaged() from error

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


def check_ids(ids: Ids, vocab_size: int, least: int = 0) -> None:
    """Raise an error for ids outside the vocabulary: compiled loops do not check them."""
    if ids.size and not least <= int(ids.min()) <= int(ids.max()) < vocab_size:
        wrong = int(ids.min()) if int(ids.min()) < least else int(ids.max())
        raise UsageError(
            f"token {wrong} is not in the model's vocabulary of {vocab_size}",
            "encode the text with the model's own tokenizer",
        )


def _damaged() -> ElmanError:
    return ElmanError(
        "the n-gram model is damaged: its entries do not form a trie",
        "restore its file from a copy, or train the model again",
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
