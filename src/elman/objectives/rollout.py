"""What a model says when it reads its own words: the raw material of every regime but one.

Nothing here has a gradient. A regime that needs one puts the tokens that came out through the
model again, all at once, which gives the very gradient of the stepwise computation (a sampled token
is a constant) at the price of a parallel pass instead of a loop with a tape.

B batch, T time steps, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from elman.models.decoding import for_decoding
from elman.models.interface import NeuralLanguageModel
from elman.nn.state import State


@torch.no_grad()
def mixed_inputs(
    model: NeuralLanguageModel, tokens_BT: Tensor, state: State, truth: float
) -> Tensor:
    """(B, T) The inputs, each the true one with probability `truth`, else the model's own draw.

    The first is always true: it stands before anything that the model could have said. A coin is
    tossed for every token (Bengio and others 2015, section 2.4). Dropout is off while drawing.
    """
    inputs_BT = tokens_BT.clone()
    own_BT = torch.rand(tokens_BT.shape, device=tokens_BT.device) >= truth
    with _undropped(model):
        decoding = for_decoding(model, share_weights=True)
        for t in range(1, tokens_BT.shape[1]):
            logprobs_BV, state = decoding.step(inputs_BT[:, t - 1], state)
            inputs_BT[:, t] = torch.where(own_BT[:, t], _draw(logprobs_BV), tokens_BT[:, t])
    return inputs_BT


@torch.no_grad()
def continuations(
    model: NeuralLanguageModel,
    first_B: Tensor,
    state: State,
    length: int,
    *,
    greedy: bool,
    end_id: int | None,
) -> tuple[Tensor, Tensor]:
    """(B, T) tokens said after `first_B`, and a mask that is False after an `end_id`.

    T is `length`, or less where every row has ended before.
    """
    said: list[Tensor] = []
    going: list[Tensor] = []
    token_B, going_B = first_B, torch.ones_like(first_B, dtype=torch.bool)
    with _undropped(model):
        decoding = for_decoding(model, share_weights=True)
        for _ in range(length):
            logprobs_BV, state = decoding.step(token_B, state)
            token_B = logprobs_BV.argmax(dim=-1) if greedy else _draw(logprobs_BV)
            said.append(token_B)
            going.append(going_B)
            if end_id is not None:
                going_B = going_B & (token_B != end_id)
                if not going_B.any():
                    break
    return torch.stack(said, dim=1), torch.stack(going, dim=1)


def _draw(logprobs_BV: Tensor) -> Tensor:
    return torch.multinomial(logprobs_BV.float().exp(), 1)[:, 0]


@contextmanager
def _undropped(model: Any) -> Iterator[None]:
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
