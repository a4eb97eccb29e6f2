"""Likelihood and accuracy of a conditional model on texts, with teacher forcing.

B batch, T time steps, N tokens, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from elman.base.errors import ElmanError
from elman.batches.conditional import ConditionalBatch
from elman.decode.prefix import CHUNK_LENGTH, device_of
from elman.evaluate.sequences import exp
from elman.models.interface import ConditionalModel, reading

DISTRIBUTION_SIZE = 1 << 24
"""Maximum numbers in a block of full distributions (64 MB of float32)."""


@dataclass(frozen=True)
class Prediction:
    nats_per_token: float
    """Average surprisal of a token, the end mark included (natural log)."""
    accuracy: float
    """Fraction of tokens that were the most likely ones."""
    tokens: int
    """Number of tokens predicted."""
    seconds: float

    @property
    def perplexity(self) -> float:
        return exp(self.nats_per_token)


def predict(model: ConditionalModel, batches: Iterable[ConditionalBatch]) -> Prediction:
    """Score all targets of `batches`; long texts are read in chunks."""
    began = time.perf_counter()
    nats, num_correct, num_tokens = 0.0, 0, 0
    with reading(model):
        device = str(device_of(model.initial_state(1)))
    for batch in batches:
        with reading(model):
            moved = batch.to(device)
            state = model.condition(*moved.given)
            for start in range(0, moved.tokens_BT.shape[1], CHUNK_LENGTH):
                chunk = slice(start, start + CHUNK_LENGTH)
                hidden, state = model.hidden(moved.tokens_BT[:, chunk], state)
                mask_BT = moved.mask_BT[:, chunk]
                hidden_NH = hidden.dropped_BTH[mask_BT]
                targets_N = moved.targets_BT[:, chunk][mask_BT]
                rows = max(1, DISTRIBUTION_SIZE // model.vocab_size)
                for some_NH, some_N in zip(
                    torch.split(hidden_NH, rows), torch.split(targets_N, rows), strict=True
                ):
                    logprobs_NV = model.head.logprobs_all(some_NH)
                    nats -= float(logprobs_NV.gather(1, some_N[:, None]).double().sum())
                    num_correct += int((logprobs_NV.argmax(dim=1) == some_N).sum())
        num_tokens += batch.num_targets
    if num_tokens == 0:
        raise ElmanError("nothing to evaluate: there are no texts", "check the files")
    return Prediction(
        nats / num_tokens, num_correct / num_tokens, num_tokens, time.perf_counter() - began
    )
