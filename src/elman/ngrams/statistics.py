"""Measure n-gram models: perplexity, unseen n-grams and contexts.

Unseen n-grams need smoothing, unseen contexts need backing off. Both shares grow with n.

T tokens, K orders.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from elman.base.threads import in_threads
from elman.ngrams.backoff import BackoffModel
from elman.ngrams.compiled import compiled
from elman.ngrams.counting import Ids
from elman.ngrams.interpolation import Floats
from elman.ngrams.trie import MEMORY, CountTrie

_STRETCH = 1 << 18
_AT_ONCE = 4
"""Stretches to score at a time: all threads wait for the last one to end."""


@dataclass(frozen=True)
class Fit:
    """How well a model predicts a text."""

    tokens: int
    """Number of scored tokens."""
    oov: int
    """Number of unknown tokens among them."""
    nats: float
    """Total surprisal."""
    impossible: int
    """Number of tokens with probability 0; any makes the surprisal infinite."""

    @property
    def nats_per_token(self) -> float:
        return self.nats / max(1, self.tokens)

    @property
    def perplexity(self) -> float:
        return math.exp(self.nats_per_token) if self.nats_per_token < 700 else math.inf


class Scorer(Protocol):
    """A model that `fit` can measure."""

    @property
    def order(self) -> int:
        """Number of tokens that a prediction depends on, itself included."""
        ...

    def score(self, ids_T: Ids, num_threads: int | None = None) -> Floats:
        """(T,) the log probability of each token of a text that begins after a boundary."""
        ...


def fit(
    model: Scorer, ids_T: Ids, *, unknown_id: int | None = None, num_threads: int | None = None
) -> Fit:
    """Score a text that begins after a boundary, in bounded memory."""
    nats, num_unknown, impossible = 0.0, 0, 0
    stretch = 16 * getattr(model, "room", MEMORY).piece
    for start in range(0, len(ids_T), _AT_ONCE * stretch):
        # Prepend a few tokens as context; their own scores are not counted.
        begin = max(0, start - model.order)
        piece = np.asarray(ids_T[begin : start + _AT_ONCE * stretch])
        logprobs = model.score(piece, num_threads)[start - begin :]
        scored = piece[start - begin :]

        def add(
            first: int, logprobs: Floats = logprobs, scored: Ids = scored
        ) -> tuple[float, int, int]:
            some = slice(first, first + stretch)
            total = -float(logprobs[some].sum(dtype=np.float64))
            zeros = int(np.isneginf(logprobs[some]).sum()) if math.isinf(total) else 0
            unknown = 0 if unknown_id is None else np.count_nonzero(scored[some] == unknown_id)
            return total, zeros, int(unknown)

        for total, zeros, unknown in in_threads(add, range(0, len(scored), stretch), num_threads):
            nats, impossible, num_unknown = nats + total, impossible + zeros, num_unknown + unknown
    return Fit(len(ids_T), num_unknown, nats, impossible)


def num_undefined(model: BackoffModel, ids_T: Ids) -> int:
    """Count the tokens of a text, which begins after a boundary, whose estimate is 0/0."""
    if not model.can_be_undefined:
        return 0
    number, room = 0, model.order - 1
    for start in range(0, len(ids_T), _STRETCH):
        end = min(start + _STRETCH, len(ids_T))
        before = np.asarray(ids_T[max(0, start - room) : end - 1], np.int64)
        edge = np.full(room + end - start - 1 - len(before), -1)
        edge[-1:] = model.boundary_id
        contexts = np.lib.stride_tricks.sliding_window_view(np.append(edge, before), room)
        found = model.undefined(contexts)
        number += 0 if found is None else int(found.sum())
    return number


def why_infinite(impossible: int, tokens: int) -> str:
    """Explain an infinite perplexity; follows "of the ... text"."""
    return (
        f"{impossible:,} of {tokens:,} tokens have probability zero, so its perplexity is "
        "infinite; use an open vocabulary and kneser-ney or another smoothing to avoid this"
    )


def unseen(
    known: CountTrie | BackoffModel, ids_T: Ids, *, unknown_id: int | None = None
) -> list[dict[str, Any]]:
    """Return, for each order, the shares of a text's n-grams and contexts that are unseen.

    Given a trie of counts, seen n-grams are those of the counted text; given a model, those that it
    lists, which excludes pruned ones. N-grams that contain the unknown token are always unseen. A
    token near the beginning of a line has only shorter contexts and counts for those orders alone;
    `ngrams` is the number that counted.
    """
    levels, stretch = _levels(known), 2 * known.room.piece
    missing_K, missing_contexts_K = np.zeros(known.order), np.zeros(known.order)
    total_K = np.zeros(known.order, np.int64)
    for start in range(0, len(ids_T), stretch):
        known.room.relieve()
        # Prepend a few tokens as context; they are not counted themselves.
        begin = max(0, start - known.order)
        piece = np.asarray(ids_T[begin : start + stretch], np.int64)
        places_T = _line_places(piece, known.boundary_id)
        room_T = np.where(np.arange(begin, begin + len(piece)) >= start, places_T, -1)
        # Index of each token's n-gram of the current length; -1 if unseen.
        tokens_T = piece.copy()
        if isinstance(known, CountTrie):
            tokens_T[known.levels[0].counts[piece] == 0] = -1
        if unknown_id is not None:
            tokens_T[piece == unknown_id] = -1
        nodes_T = tokens_T
        for k in range(known.order):
            if k > 0:
                contexts_T = np.concatenate([[-1], nodes_T[:-1]])
                if k == 1:
                    contexts_T[places_T == 1] = known.boundary_id
                contexts_T, nodes_T = _continue(*levels[k - 1], contexts_T, tokens_T)
                missing_contexts_K[k] += (contexts_T[room_T >= k] < 0).sum()
            total_K[k] += (room_T >= k).sum()
            missing_K[k] += (nodes_T[room_T >= k] < 0).sum()
    return [
        {
            "order": k + 1,
            "ngrams": int(total_K[k]),
            "unseen_ngrams": float(missing_K[k] / max(1, total_K[k])),
            "unseen_contexts": float(missing_contexts_K[k] / max(1, total_K[k])),
        }
        for k in range(known.order)
    ]


def _levels(known: CountTrie | BackoffModel) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Return `first_child`, and the words of the children, for each length but the longest."""
    if isinstance(known, CountTrie):
        pairs = pairwise(known.levels)
        return [(parents.first_child, children.words) for parents, children in pairs]
    known.check()  # the loop does not check its steps
    return [(known.first_child, known.words)] * (known.order - 1)


@compiled
def _continue(
    first_child: NDArray[Any],
    words: NDArray[Any],
    contexts_T: NDArray[np.int64],
    tokens_T: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return each context if anything was seen after it, and the n-gram it forms with the token;
    -1 otherwise.
    """
    followed_T = np.full(len(tokens_T), -1, np.int64)
    found_T = np.full(len(tokens_T), -1, np.int64)
    for t in range(len(tokens_T)):
        if contexts_T[t] < 0:
            continue
        low, end = np.int64(first_child[contexts_T[t]]), np.int64(first_child[contexts_T[t] + 1])
        if low == end:
            continue
        followed_T[t] = contexts_T[t]
        high = end
        while low < high:
            middle = (low + high) // 2
            if words[middle] < tokens_T[t]:
                low = middle + 1
            else:
                high = middle
        if low < end and words[low] == tokens_T[t]:
            found_T[t] = low
    return followed_T, found_T


def _line_places(ids_T: Ids, boundary_id: int) -> Ids:
    """Return the number of context tokens of each token in its line, boundary included."""
    places = np.arange(len(ids_T))
    begins = np.where(np.concatenate([[True], ids_T[:-1] == boundary_id]), places, 0)
    return places - np.maximum.accumulate(begins) + 1
