"""What a model of n-grams knows, what it has never seen, and how well it predicts.

The lecture's two problems are figures here: the share of n-grams in new text that were never seen
(they need smoothing), and the share of contexts that were never seen (they need backing off). Both
grow with n, and so does the storage.

T tokens, K orders.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from elman.ngrams.backoff import BackoffModel
from elman.ngrams.compiled import compiled
from elman.ngrams.counting import Ids
from elman.ngrams.interpolation import Floats
from elman.ngrams.trie import CountTrie

_STRETCH = 1 << 21

BYTES_PER_CONTEXT, BYTES_PER_LEAF = 20, 12
"""What an n-gram takes in a model: where longer ones follow, and among the longest."""


@dataclass(frozen=True)
class Fit:
    """How well a model predicts a text."""

    tokens: int
    """How many tokens were scored."""
    oov: int
    """How many of them were the unknown token."""
    nats: float
    """The total surprisal, natural logarithm."""
    known_nats: float
    """That of the tokens that are not the unknown one."""
    impossible: int
    """How many of the tokens had no probability: any makes the surprisal infinite."""

    @property
    def nats_per_token(self) -> float:
        """The average surprisal."""
        return self.nats / max(1, self.tokens)

    @property
    def perplexity(self) -> float:
        """exp(nats_per_token); infinite where a token had no probability."""
        return _exp(self.nats_per_token)

    @property
    def perplexity_without_unknown(self) -> float:
        """Perplexity over the tokens that are not the unknown one."""
        known = self.tokens - self.oov
        return _exp(self.known_nats / known) if known else math.inf


class Scorer(Protocol):
    """A counting model, as far as measuring it needs one."""

    @property
    def order(self) -> int:
        """On how many tokens a prediction depends, itself included."""
        ...

    def score(self, ids_T: Ids, num_threads: int | None = None) -> Floats:
        """(T,) the log probability of each token of a text that follows a boundary."""
        ...


def fit(
    model: Scorer,
    ids_T: Ids,
    *,
    unknown_id: int | None = None,
    num_threads: int | None = None,
) -> Fit:
    """Score a text that follows a boundary, in bounded memory."""
    nats, known_nats, num_unknown, impossible = 0.0, 0.0, 0, 0
    for start in range(0, len(ids_T), _STRETCH):
        # A few tokens in front give the context; what they themselves score is left out.
        begin = max(0, start - model.order)
        piece = np.asarray(ids_T[begin : start + _STRETCH])
        logprobs = model.score(piece, num_threads)[start - begin :]
        total = -float(logprobs.sum(dtype=np.float64))
        nats += total
        if math.isinf(total):
            impossible += int(np.isneginf(logprobs).sum())
        unknown = piece[start - begin :] == (-1 if unknown_id is None else unknown_id)
        if found := int(np.count_nonzero(unknown)):
            # Not by subtracting from the total: unknown tokens may have none of the probability.
            total = -float(logprobs[~unknown].sum(dtype=np.float64))
            num_unknown += found
        known_nats += total
    return Fit(len(ids_T), num_unknown, nats, known_nats, impossible)


def why_infinite(impossible: int, tokens: int) -> str:
    """A sentence on a perplexity that is infinite."""
    return (
        f"{impossible:,} of {tokens:,} tokens have probability zero, so its perplexity is "
        f"infinite; kneser-ney and most other smoothings, with an open vocabulary, leave none so"
    )


def unseen(
    known: CountTrie | BackoffModel, ids_T: Ids, *, unknown_id: int | None = None
) -> list[dict[str, Any]]:
    """For each order, which share of a text's n-grams and of their contexts was never seen.

    In the counts of a text, seen is what the text has; in a model, what it lists, and pruning may
    have left out much that its text had. N-grams with the unknown token in them are unseen
    whatever stands there: the model has not met those words. A token at the beginning of a line
    has shorter contexts only, and counts for those; `ngrams` says how many there were.
    """
    levels = _levels(known)
    missing_K, missing_contexts_K = np.zeros(known.order), np.zeros(known.order)
    total_K = np.zeros(known.order, np.int64)
    for start in range(0, len(ids_T), _STRETCH >> 3):
        # A few tokens in front give the context; what they themselves meet is left out.
        begin = max(0, start - known.order)
        piece = np.asarray(ids_T[begin : start + (_STRETCH >> 3)], np.int64)
        places_T = _line_places(piece, known.boundary_id)
        room_T = np.where(np.arange(begin, begin + len(piece)) >= start, places_T, -1)
        # Where each token's n-gram of the length at hand stands, and -1 where it was never seen.
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


def growth(model: BackoffModel) -> list[dict[str, Any]]:
    """For each order, the n-grams of that length, and what a model up to there would take."""
    rows = []
    inner = 0
    for length, size in enumerate(model.num_ngrams, start=1):
        rows.append({"order": length, "ngrams": size, "bytes": inner + size * BYTES_PER_LEAF})
        inner += size * BYTES_PER_CONTEXT
    return rows


def _levels(known: CountTrie | BackoffModel) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """For each length, where the continuations of its n-grams begin, and the words of those."""
    if isinstance(known, CountTrie):
        pairs = pairwise(known.levels)
        return [(parents.first_child, children.words) for parents, children in pairs]
    return [(known.first_child, known.words)] * (known.order - 1)


@compiled
def _continue(
    first_child: NDArray[Any],
    words: NDArray[Any],
    contexts_T: NDArray[np.int64],
    tokens_T: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Each context if anything was seen after it, and its continuation by the token; else -1."""
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
    """For each token, how many tokens of context its line has, the boundary included."""
    places = np.arange(len(ids_T))
    begins = np.where(np.concatenate([[True], ids_T[:-1] == boundary_id]), places, 0)
    return places - np.maximum.accumulate(begins) + 1


def _exp(nats: float) -> float:
    return math.exp(nats) if nats < 700 else math.inf
