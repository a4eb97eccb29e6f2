"""N-grams without a limit on n: the longest match in the text, interpolated into a back-off model.

    P(w | context) = lambda c(match w) / c(match)  +  (1 - lambda) P_backoff(w | context)

The match is the longest end of the context that the training text goes on after, found in a
`TextIndex` (infini-gram: Liu and others, 2024). lambda depends on its length, on how often it
occurs and on whether only one token ever follows it, in bins, and is fitted on held-out text by
expectation maximisation. Both parts are distributions, so the mixture is one too.

A state is a position and a length: the match itself stands in the text. The back-off model was
counted from the same text, so no context that it knows is longer than the match.

B batch, T tokens, C tokens of context, V vocabulary, L bins of lengths, N of counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elman.base.documents import damaged, intact, read_json, write_json
from elman.base.threads import in_threads
from elman.ngrams import matching
from elman.ngrams.backoff import BackoffModel
from elman.ngrams.interpolation import Floats
from elman.ngrams.matching import Ids, Numbers
from elman.ngrams.suffix_array import DEPTH
from elman.ngrams.text_index import TextIndex

WEIGHTS_FILE = "weights.json"
FORMAT = 1
LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 32, 64)
"""The length at which each bin begins, after that of 0."""
COUNTS = (2, 3, 5, 9, 17, 65)
"""The count at which each bin begins, after that of 1."""
_STRETCH = 1 << 15
_ROUNDS = 50
_PRIOR = 5.0
"""Held-out tokens that the weight of all bins of one length counts as in each of them."""
_MOST = 0.999
_LEAST = 1e-4
LENGTH, COUNT, HITS, LOW = range(4)
"""The columns of matches."""


@dataclass
class UnboundedModel:
    index: TextIndex
    backoff: BackoffModel
    weights_LN2: Floats
    """lambda by bin of length and of count; the last axis is 1 if one token alone follows."""

    @property
    def vocab_size(self) -> int:
        return self.index.vocab_size

    @property
    def boundary_id(self) -> int:
        return self.index.boundary_id

    @property
    def order(self) -> int:
        """Number of tokens that a prediction can depend on, itself included."""
        return DEPTH

    def check_unchanged(self) -> None:
        self.index.check_unchanged()
        self.backoff.check_unchanged()

    def weights(self, matches: Numbers) -> Floats:
        """lambda of each match."""
        lengths, counts, single = bins(matches)
        return self.weights_LN2[lengths, counts, single]

    def matches(self, ids_T: Ids, num_threads: int | None = None) -> Numbers:
        """(T, 4) the longest match before each token of a text that begins after a boundary:
        columns as in `matching.follow`."""
        found = np.empty((len(ids_T), 4), np.int64)
        read = np.concatenate([[self.boundary_id], np.asarray(ids_T[:-1])]).astype(np.int64)

        def follow(span: tuple[int, int]) -> None:
            start, end = span
            before, tokens = read[max(0, start - DEPTH) : start], read[start:end]
            found[start:end], _ = self.index.follow(before, tokens, ids_T[start:end])

        spans = pairwise([*range(0, len(ids_T), _STRETCH), len(ids_T)])
        in_threads(follow, spans, num_threads)
        return found

    def score(self, ids_T: Ids, num_threads: int | None = None) -> Floats:
        """(T,) the log probability of each token of a text that begins after a boundary."""
        if not len(ids_T):
            return np.empty(0, np.float32)
        backoff_T = self.backoff.score(ids_T, num_threads)
        return self._mixed(self.matches(ids_T, num_threads), backoff_T)

    def read(self, tokens_BT: Ids, states_B2: Numbers) -> Numbers:
        """(B, 2) the states after reading T more tokens."""
        return self._follow(tokens_BT, tokens_BT[:, :0], states_B2)[1]

    def score_rows(
        self, tokens_BT: Ids, targets_BT: Ids, states_B2: Numbers
    ) -> tuple[Floats, Numbers]:
        """(B, T) log P(target | what the row has read up to the same token), and the states."""
        matches_BT4, after_B2 = self._follow(tokens_BT, targets_BT, states_B2)
        contexts_BC = self._contexts(states_B2)
        return self._mixed(
            matches_BT4, self.backoff.score_rows(tokens_BT, targets_BT, contexts_BC)
        ), after_B2

    def distributions(self, tokens_B: Ids, states_B2: Numbers) -> tuple[Floats, Numbers]:
        """(B, V) log P(token | what the row has read, and this token), and the states."""
        tokens_B1 = np.asarray(tokens_B)[:, None]
        # Any target will do: the match does not depend on it.
        matches_B14, after_B2 = self._follow(tokens_B1, np.zeros_like(tokens_B1), states_B2)
        logprobs_BV = self.backoff.distributions(self._contexts(after_B2))
        matches_B4 = np.ascontiguousarray(matches_B14[:, 0])
        weights_B = self.weights(matches_B4)
        self.index.run(matching.add_continuations, matches_B4, weights_B, logprobs_BV)
        return logprobs_BV, after_B2

    def agreement(self, ids_T: Ids, num_threads: int | None = None) -> list[dict[str, Any]]:
        """By length of the longest match, how often its most frequent continuation is the next
        token of a text; `single` counts the matches that one token alone follows."""
        matches = self.matches(ids_T, num_threads)
        columns = matches[:, [LENGTH, LOW, COUNT]]
        ranges, which = np.unique(columns, axis=0, return_inverse=True)
        guesses = np.full(len(ranges), -1, np.int64)
        known = ranges[:, 0] > 0
        found = guesses[known]
        self.index.run(matching.first_guesses, ranges[known], found)
        guesses[known] = found
        agrees_T = guesses[which.reshape(-1)] == ids_T
        lengths_T, _, single_T = bins(matches)
        edges = (0, *LENGTHS, DEPTH)
        rows = []
        for number, (first, end) in enumerate(pairwise(edges)):
            here = lengths_T == number
            if first == 0 or not here.any():
                continue
            alone = here & (single_T == 1)
            rows.append(
                {
                    "length": first,
                    "longest": end - 1,
                    "tokens": int(here.sum()),
                    "agreement": float(agrees_T[here].mean()),
                    "single_tokens": int(alone.sum()),
                    "single_agreement": float(agrees_T[alone].mean()) if alone.any() else None,
                }
            )
        return rows

    def _follow(
        self, tokens_BT: Ids, targets_BT: Ids, states_B2: Numbers
    ) -> tuple[Numbers, Numbers]:
        found = np.zeros((*np.shape(targets_BT), 4), np.int64)
        after_B2 = np.zeros_like(states_B2)

        def follow(row: int) -> None:
            place, length = states_B2[row].tolist()
            before = self.index.tokens(place, length)
            found[row], after_B2[row] = self.index.follow(before, tokens_BT[row], targets_BT[row])

        # Threads do not pay for a few tokens.
        in_threads(follow, range(len(states_B2)), None if tokens_BT.shape[1] > 16 else 1)
        return found, after_B2

    def _contexts(self, states_B2: Numbers) -> Numbers:
        """(B, C) the last tokens that each row has read, as far as the text has them."""
        contexts_BC = np.empty((len(states_B2), self.backoff.order - 1), np.int64)
        self.index.run(matching.contexts, np.ascontiguousarray(states_B2), contexts_BC)
        return contexts_BC

    def _mixed(self, matches: Numbers, backoff: Floats) -> Floats:
        weights = self.weights(matches).astype(np.float64)
        shares = matches[..., HITS] / np.maximum(1, abs(matches[..., COUNT]))
        with np.errstate(divide="ignore"):
            mixed = np.log(weights * shares + (1 - weights) * np.exp(backoff.astype(np.float64)))
        return np.where(weights > 0, mixed, backoff).astype(np.float32)


def bins(matches: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """The bins of matches: of length, of count, and whether one token alone follows."""
    counts = matches[..., COUNT]
    lengths = np.searchsorted(LENGTHS, matches[..., LENGTH], side="right")
    return lengths, np.searchsorted(COUNTS, abs(counts), side="right"), (counts < 0).astype(np.intp)


def fixed_weights() -> Floats:
    """Weights for a model without held-out text: more for longer and more frequent matches."""
    lengths = np.array([0, *LENGTHS], np.float64)[:, None, None]
    counts = np.array([1, *COUNTS], np.float64)[None, :, None]
    others = np.array([2.0, 0.5])  # a match that only one token follows is more reliable
    return np.asarray(lengths / (lengths + 1) * counts / (counts + others), np.float32)


def fit_weights(
    index: TextIndex, backoff: BackoffModel, ids_T: Ids, num_threads: int | None = None
) -> Floats:
    """Fit lambda to held-out text, in each bin by expectation maximisation.

    A bin with few tokens takes over from all bins of its length. Matches of length 0 have none.
    """
    model = UnboundedModel(index, backoff, fixed_weights())
    matches = model.matches(ids_T, num_threads)
    shares_T = matches[:, HITS] / np.maximum(1, abs(matches[:, COUNT]))
    others_T = np.exp(backoff.score(ids_T, num_threads).astype(np.float64))
    lengths_T, counts_T, single_T = bins(matches)
    weights_LN2 = np.zeros_like(model.weights_LN2, np.float64)
    shape = weights_LN2.shape
    fit = partial(_fit, shares_T, others_T)
    overall = fit(np.where(lengths_T > 0, 0, 1), 2, np.full(2, 0.1))[0]
    by_length = fit(2 * lengths_T + single_T, 2 * shape[0], np.full(2 * shape[0], overall))
    where = (lengths_T * shape[1] + counts_T) * 2 + single_T
    before = np.repeat(by_length.reshape(-1, 1, 2), shape[1], axis=1)
    weights_LN2 = fit(where, weights_LN2.size, before.reshape(-1)).reshape(shape)
    weights_LN2[weights_LN2 < _LEAST] = 0
    weights_LN2[0] = 0
    return weights_LN2.astype(np.float32)


def _fit(
    shares_T: NDArray[np.float64],
    others_T: NDArray[np.float64],
    where_T: Numbers,
    number: int,
    before: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Fit one weight per bin; `before` is what it is worth `_PRIOR` tokens to begin with."""
    weights = before.copy()
    sizes = np.bincount(where_T, minlength=number) + _PRIOR
    for _ in range(_ROUNDS):
        weights_T = weights[where_T]
        ours_T = weights_T * shares_T
        total_T = ours_T + (1 - weights_T) * others_T
        due_T = np.divide(ours_T, total_T, out=np.zeros_like(ours_T), where=total_T > 0)
        due = np.bincount(where_T, weights=due_T, minlength=number)
        weights = np.minimum((due + _PRIOR * before) / sizes, _MOST)
    return weights


def save_weights(path: Path, weights_LN2: Floats) -> None:
    numbers = [[list(map(float, pair)) for pair in row] for row in weights_LN2.round(6)]
    edges = {"lengths": list(LENGTHS), "counts": list(COUNTS)}
    write_json(path, {"format": FORMAT, **edges, "weights": numbers}, seal=True)


def load_weights(path: Path) -> Floats:
    with intact(path):
        found = read_json(path)
        weights = np.array(found["weights"], np.float32)
        if found["format"] != FORMAT or weights.shape != (len(LENGTHS) + 1, len(COUNTS) + 1, 2):
            raise damaged(path, "its bins are not those of this version")
        if not ((weights >= 0) & (weights < 1)).all() or weights[0].any():
            raise damaged(path, "its weights are not between 0 and 1")
        return weights
