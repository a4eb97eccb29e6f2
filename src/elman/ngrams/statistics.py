"""What a model of n-grams knows, what it has never seen, and how well it predicts.

The lecture's two problems are figures here: the share of n-grams in new text that were never seen
(they need smoothing), and the share of contexts that were never seen (they need backing off). Both
grow with n, and so does the storage.

T tokens, K orders.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from elman.ngrams.backoff import BackoffModel
from elman.ngrams.counting import Ids
from elman.ngrams.interpolation import Floats

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
    nats, known_nats, num_unknown = 0.0, 0.0, 0
    for start in range(0, len(ids_T), _STRETCH):
        # A few tokens in front give the context; what they themselves score is left out.
        begin = max(0, start - model.order)
        piece = np.asarray(ids_T[begin : start + _STRETCH])
        logprobs = model.score(piece, num_threads)[start - begin :]
        total = -float(logprobs.sum(dtype=np.float64))
        nats += total
        unknown = piece[start - begin :] == (-1 if unknown_id is None else unknown_id)
        if found := int(np.count_nonzero(unknown)):
            # Not by subtracting from the total: unknown tokens may have none of the probability.
            total = -float(logprobs[~unknown].sum(dtype=np.float64))
            num_unknown += found
        known_nats += total
    return Fit(len(ids_T), num_unknown, nats, known_nats)


def unseen(model: BackoffModel, ids_T: Ids) -> list[dict[str, Any]]:
    """For each order, which share of a text's n-grams and of their contexts the model lacks.

    A token at the beginning of a line has shorter contexts only, and counts for those.
    """
    missing_K, missing_contexts_K = np.zeros(model.order), np.zeros(model.order)
    total_K = np.zeros(model.order)
    seen_V = _seen(model)
    for start in range(0, len(ids_T), _STRETCH >> 3):
        piece = np.asarray(ids_T[start : start + (_STRETCH >> 3)], np.int64)
        ngrams_TK, contexts_TK = model.trace(piece)
        ngrams_TK[~seen_V[piece], 0] = -1
        room_T = _line_places(piece, model.boundary_id)
        for k in range(model.order):
            there = room_T >= k
            total_K[k] += there.sum()
            missing_K[k] += (ngrams_TK[there, k] < 0).sum()
            missing_contexts_K[k] += ((contexts_TK[there, k] < 0) & (k > 0)).sum()
    return [
        {
            "order": k + 1,
            "unseen_ngrams": float(missing_K[k] / max(1, total_K[k])),
            "unseen_contexts": float(missing_contexts_K[k] / max(1, total_K[k])),
        }
        for k in range(model.order)
    ]


def growth(model: BackoffModel) -> list[dict[str, Any]]:
    """For each order, the n-grams of that length, and what a model up to there would take."""
    rows = []
    inner = 0
    for length, size in enumerate(model.num_ngrams, start=1):
        rows.append({"order": length, "ngrams": size, "bytes": inner + size * BYTES_PER_LEAF})
        inner += size * BYTES_PER_CONTEXT
    return rows


def _seen(model: BackoffModel) -> NDArray[np.bool_]:
    """(V,) which tokens the training text had: those that end a pair of tokens."""
    if model.order == 1:
        return np.ones(model.vocab_size, np.bool_)
    seen_V = np.zeros(model.vocab_size, np.bool_)
    seen_V[model.words[model.level_starts[1] : model.level_starts[2]]] = True
    return seen_V


def _line_places(ids_T: Ids, boundary_id: int) -> Ids:
    """For each token, how many tokens of context its line has, the boundary included."""
    places = np.arange(len(ids_T))
    begins = np.where(np.concatenate([[True], ids_T[:-1] == boundary_id]), places, 0)
    return places - np.maximum.accumulate(begins) + 1


def _exp(nats: float) -> float:
    return math.exp(nats) if nats < 700 else math.inf
