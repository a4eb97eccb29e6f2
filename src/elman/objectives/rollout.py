"""Sampling from a model during training, for every regime except teacher forcing.

Nothing here has a gradient. A regime that needs one runs the sampled tokens through the model again
in one parallel pass: sampled tokens are constants, so the gradient equals that of the stepwise
computation.

B batch, T time steps, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from elman.models.decoding import for_decoding
from elman.models.interface import NeuralLanguageModel, reading
from elman.nn.state import State


def mixed_inputs(
    model: NeuralLanguageModel, tokens_BT: Tensor, state: State, truth: float
) -> Tensor:
    """Return (B, T) inputs: each the true token with probability `truth`, else a sampled one.

    The first token is always the true one. The choice is made for every token by itself (Bengio
    and others 2015, section 2.4). Dropout is off while sampling.
    """
    inputs_BT = tokens_BT.clone()
    own_BT = torch.rand(tokens_BT.shape, device=tokens_BT.device) >= truth
    with reading(model):
        decoding = for_decoding(model, share_weights=True)
        for t in range(1, tokens_BT.shape[1]):
            logprobs_BV, state = decoding.step(inputs_BT[:, t - 1], state)
            inputs_BT[:, t] = torch.where(own_BT[:, t], _draw(logprobs_BV), tokens_BT[:, t])
    return inputs_BT


def continuations(
    model: NeuralLanguageModel,
    first_B: Tensor,
    state: State,
    length: int,
    *,
    greedy: bool,
    end_id: int | None,
) -> tuple[Tensor, Tensor]:
    """Return (B, T) tokens generated after `first_B`, and a mask that is False after an `end_id`.

    T is `length`, or less if every row ends earlier.
    """
    said: list[Tensor] = []
    going: list[Tensor] = []
    token_B, going_B = first_B, torch.ones_like(first_B, dtype=torch.bool)
    with reading(model):
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
