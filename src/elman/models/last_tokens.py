"""The state of models that depend on a fixed number of previous tokens and run on the CPU.

B batch, T time steps, C tokens of context.
"""

from __future__ import annotations

import torch
from torch import Tensor

from elman.nn.state import State

NOTHING = -1
"""Padding before the first token."""


def empty_context(batch_size: int, size: int) -> State:
    return State({"context": torch.full((batch_size, size), NOTHING)})


def append_tokens(state: State, tokens_BT: Tensor) -> State:
    """Append T tokens to the context and keep the last C."""
    context_BC = state.tensor("context").cpu()
    joined = torch.cat([context_BC, tokens_BT.cpu().long()], dim=1)
    return State({"context": joined[:, tokens_BT.shape[1] :]})
