"""Fit the weights of a mixture of language models to held-out text by expectation maximisation.

    P(w) = sum over m of weight_m P_m(w)

The likelihood is concave in the weights, so there is one optimum and every step comes closer to it.
Any models over one vocabulary will do: networks, counting models, mixtures.

M models, N tokens of the text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elman.base.errors import ElmanError
from elman.batches.encoded import EncodedText
from elman.evaluate.perplexity import scored_tokens
from elman.evaluate.sequences import exp
from elman.models.interface import LanguageModel

MOST_ITERATIONS = 1000
SMALLEST_GAIN = 1e-9
"""Stop when a step gains less than this (nats per token)."""
SMALLEST_WEIGHT = 1e-6
"""Minimum weight: a mixture needs positive weights."""


@dataclass(frozen=True)
class MixtureFit:
    weights: list[float]
    """One per model; they sum to one."""
    perplexity: float
    """Of the mixture."""
    perplexities: list[float]
    """Of each model alone."""
    tokens: int
    """Number of tokens that the weights were fitted to."""
    iterations: int
    oov: int = 0
    """Number of those tokens that are unknown to the models."""
    reads_as: str = ""
    """How the text was changed to the form of the training text; empty: not at all."""
    notes: tuple[str, ...] = ()
    """Caveats about the figures of the models."""


def fit_weights(
    models: Sequence[LanguageModel],
    text: EncodedText,
    *,
    boundary_id: int,
    unknown_id: int | None = None,
    line_end: int | None = None,
) -> MixtureFit:
    """Find the weights under which the mixture of `models` makes `text` most probable.

    With `line_end`, the token that ends a line, each line is read from the initial state.
    """
    if text.num_tokens == 0:
        raise ElmanError("cannot fit weights: the text is empty", "check the file")
    logprobs_MN = token_logprobs(models, text, boundary_id=boundary_id, line_end=line_end)
    weights_M, mean, iterations = maximise(logprobs_MN)
    return MixtureFit(
        weights=weights_M.tolist(),
        perplexity=exp(-mean),
        perplexities=[exp(-float(logprobs_N.mean())) for logprobs_N in logprobs_MN],
        tokens=logprobs_MN.shape[1],
        iterations=iterations,
        oov=0 if unknown_id is None else int((text.ids == unknown_id).sum()),
    )


def maximise(logprobs_MN: NDArray[np.float64]) -> tuple[NDArray[np.float64], float, int]:
    """Return weights, the mixture's mean log probability per token, and the number of steps.

    Tokens that are impossible under every model do not affect the weights.
    """
    num_models = len(logprobs_MN)
    weights_M = np.full(num_models, 1 / num_models)
    highest_N = logprobs_MN.max(0)
    possible = highest_N > -np.inf
    if not possible.any():
        return weights_M, -math.inf, 0
    probs_MN = np.exp(logprobs_MN[:, possible] - highest_N[possible])
    before, iterations = -math.inf, 0
    while iterations < MOST_ITERATIONS:
        mixed_N = weights_M @ probs_MN
        mean = float(np.log(mixed_N).mean())
        if mean - before < SMALLEST_GAIN:
            break
        before = mean
        weights_M = weights_M * (probs_MN / mixed_N).mean(1)
        iterations += 1
    weights_M = np.maximum(weights_M, SMALLEST_WEIGHT)
    weights_M /= weights_M.sum()
    mixed_N = np.full(len(highest_N), -np.inf)
    mixed_N[possible] = np.log(weights_M @ probs_MN) + highest_N[possible]
    return weights_M, float(mixed_N.mean()), iterations


def token_logprobs(
    models: Sequence[LanguageModel],
    text: EncodedText,
    *,
    boundary_id: int,
    line_end: int | None = None,
) -> NDArray[np.float64]:
    """(M, N) each model's log probability of each token, in the same order for all models."""
    rows = []
    for model in models:
        chunks = scored_tokens(model, text, boundary_id=boundary_id, line_end=line_end)
        rows.append(np.concatenate([logprobs_N.cpu().numpy() for logprobs_N, _ in chunks]))
    return np.stack(rows)
