"""Weights for a mixture of language models, fitted to held-out text by expectation maximisation.

    P(w) = sum over m of weight_m P_m(w)

The likelihood of the text is concave in the weights, so there is one best answer and every step
comes nearer to it. Any models over one vocabulary will do: networks, n-grams, mixtures.

B lanes, T time steps, M models, N tokens of the text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elman.base.errors import ElmanError
from elman.batches.encoded import EncodedText
from elman.batches.lanes import scoring_lanes
from elman.decode.prefix import device_of, reading
from elman.evaluate.perplexity import CHUNK_LENGTH, LANE_LENGTH, MOST_LANES
from elman.evaluate.sequences import exp
from elman.models.interface import LanguageModel
from elman.nn.state import State

MOST_ITERATIONS = 1000
SMALLEST_GAIN = 1e-9
"""Nats per token; a step that gains less is the last."""
SMALLEST_WEIGHT = 1e-6
"""What a useless model is left with: a mixture has no parts without any weight."""


@dataclass(frozen=True)
class MixtureFit:
    """Fitted weights, and how good the mixture is on the text they were fitted to."""

    weights: list[float]
    """One for each model; they sum to one."""
    perplexity: float
    """Of the mixture."""
    perplexities: list[float]
    """Of each model alone."""
    tokens: int
    """How many tokens the weights were fitted to."""
    iterations: int
    """How many steps that took."""
    notes: tuple[str, ...] = ()
    """What one should know before trusting the figures of one of the models; mostly nothing."""


def fit_weights(
    models: Sequence[LanguageModel],
    text: EncodedText,
    *,
    boundary_id: int,
    batch_size: int | None = None,
    overlap: int = 128,
) -> MixtureFit:
    """The weights under which the mixture of `models` makes `text` most probable."""
    if text.num_tokens == 0:
        raise ElmanError("there is nothing to fit weights to: the text is empty", "check the file")
    logprobs_MN = token_logprobs(
        models, text, boundary_id=boundary_id, batch_size=batch_size, overlap=overlap
    )
    weights_M, mean, iterations = maximise(logprobs_MN)
    return MixtureFit(
        weights=weights_M.tolist(),
        perplexity=exp(-mean),
        perplexities=[exp(-float(logprobs_N.mean())) for logprobs_N in logprobs_MN],
        tokens=logprobs_MN.shape[1],
        iterations=iterations,
    )


def maximise(logprobs_MN: NDArray[np.float64]) -> tuple[NDArray[np.float64], float, int]:
    """Weights, mean log probability of a token under the mixture, and steps.

    Tokens to which no model gives any probability have no say in the weights.
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
    batch_size: int | None = None,
    overlap: int = 128,
) -> NDArray[np.float64]:
    """(M, N) what each model gives to each token of a text, the tokens in one order for all."""
    if batch_size is None:
        batch_size = max(1, min(MOST_LANES, text.num_tokens // (LANE_LENGTH * max(overlap, 1))))
    states: list[State] = []
    parts: list[NDArray[np.float64]] = []
    for batch in scoring_lanes(
        text,
        boundary_id=boundary_id,
        batch_size=batch_size,
        chunk_length=CHUNK_LENGTH,
        overlap=overlap if batch_size > 1 else 0,
    ):
        if batch.fresh:
            states = [model.initial_state(batch.tokens_BT.shape[0]) for model in models]
        mask_BT = np.ones(batch.tokens_BT.shape, np.bool_)
        if batch.mask_BT is not None:
            mask_BT = batch.mask_BT.numpy()
        rows = []
        for i, model in enumerate(models):
            with reading(model):
                moved = batch.to(str(device_of(states[i])))
                found_BT, states[i] = model.logprobs(moved.tokens_BT, moved.targets_BT, states[i])
            rows.append(found_BT.double().cpu().numpy()[mask_BT])
        parts.append(np.stack(rows))
    return np.concatenate(parts, axis=1)
