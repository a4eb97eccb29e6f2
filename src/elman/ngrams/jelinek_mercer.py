"""Fit the weights of Jelinek-Mercer interpolation on held-out text, by expectation maximisation.

    P(w | context) = lambda P_ML(w | context) + (1 - lambda) P(w | shorter context)

There is one lambda for each order and each power of two of the context's count: frequent contexts
get more weight.

T tokens, K orders, B buckets.
"""

from __future__ import annotations

import numpy as np

from elman.ngrams.backoff import BackoffModel
from elman.ngrams.counting import Ids
from elman.ngrams.interpolation import Doubles, Estimate, Floats
from elman.ngrams.trie import CountTrie

NUM_BUCKETS = 16
"""Contexts seen 1, 2-3, 4-7, ... 32,768 times and more."""
MOST_TOKENS = 1_000_000
"""Limit on the held-out tokens used: there are few weights to fit."""
NUM_ITERATIONS = 30
DEFAULT = 0.5
"""Weight without held-out text."""
LARGEST = 0.999
"""Upper limit of a weight: other text has events that the held-out text lacks."""
FITTED = (
    "the interpolation weights were fitted to the validation text, or to held-out training text, "
    "so its perplexity flatters the model: measure on a test text"
)


def fit_lambdas(
    trie: CountTrie, plain: Estimate, uniform_V: Floats, held_out: Ids | None
) -> tuple[list[list[float]], str]:
    """Return for each order the weights by context frequency, and a note on the text used.

    `plain` has the maximum-likelihood probabilities of the trie's n-grams.
    """
    if held_out is None or len(held_out) == 0:
        weights = [[DEFAULT] for _ in trie.levels]
        return weights, f"no held-out text: all interpolation weights are {DEFAULT}"
    held_out = np.asarray(held_out[:MOST_TOKENS], np.int64)
    model = BackoffModel.assemble(trie, plain)
    ngrams_TK, contexts_TK = model.trace(held_out)
    probs_TK = np.where(ngrams_TK >= 0, np.exp(model.logprob, dtype=np.float64)[ngrams_TK], 0.0)
    totals = np.concatenate([[], *(_totals(trie, length) for length in range(1, trie.order))])
    buckets_TK = np.full(contexts_TK.shape, -1)
    seen = contexts_TK >= 0
    buckets_TK[seen] = bucket(totals[contexts_TK[seen]])
    buckets_TK[:, 0] = bucket(np.array([max(1, int(trie.levels[0].counts.sum()))]))[0]
    lambdas_KB = np.full((trie.order, NUM_BUCKETS), DEFAULT)
    for _ in range(NUM_ITERATIONS):
        lambdas_KB = _improve(lambdas_KB, probs_TK, buckets_TK, uniform_V[held_out])
    return lambdas_KB.tolist(), FITTED


def bucket(totals: Doubles) -> np.ndarray:
    """Return the index of the weight for contexts with these counts; -1 for unseen contexts."""
    logs = np.floor(np.log2(np.maximum(totals, 0.5)))
    return np.minimum(logs, NUM_BUCKETS - 1).astype(np.int64)


def _totals(trie: CountTrie, length: int) -> Doubles:
    """Return the number of tokens seen after each n-gram of a length."""
    sums = np.concatenate([[0], np.cumsum(trie.levels[length].counts, dtype=np.float64)])
    return np.diff(sums[trie.levels[length - 1].first_child])


def _improve(
    lambdas_KB: Doubles, probs_TK: Doubles, buckets_TK: np.ndarray, uniform_T: Floats
) -> Doubles:
    """Run one iteration of expectation maximisation."""
    num_orders, num_buckets = lambdas_KB.shape
    weights_TK = np.where(
        buckets_TK >= 0, lambdas_KB[np.arange(num_orders), np.maximum(buckets_TK, 0)], 0.0
    )
    mixed_T = uniform_T.astype(np.float64)
    own_TK = np.empty_like(probs_TK)
    for k in range(num_orders):
        direct_T = weights_TK[:, k] * probs_TK[:, k]
        mixed_T = direct_T + (1 - weights_TK[:, k]) * mixed_T
        own_TK[:, k] = direct_T / np.maximum(mixed_T, 1e-300)
    reached_T = np.ones(len(probs_TK))
    improved = np.empty_like(lambdas_KB)
    for k in range(num_orders - 1, -1, -1):
        seen = buckets_TK[:, k] >= 0
        index = buckets_TK[seen, k]
        reached = np.bincount(index, reached_T[seen], num_buckets)
        taken = np.bincount(index, (reached_T * own_TK[:, k])[seen], num_buckets)
        pooled = taken.sum() / reached.sum() if reached.sum() > 0 else DEFAULT
        fitted = np.where(reached > 0, taken / np.maximum(reached, 1e-300), pooled)
        improved[k] = np.minimum(fitted, LARGEST)
        reached_T = reached_T * (1 - own_TK[:, k])
    return improved
