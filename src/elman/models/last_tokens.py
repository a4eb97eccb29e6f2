"""The state of models that look at the last few tokens.

B batch, T time steps, C tokens of context.
"""

from __future__ import annotations

import torch
from torch import Tensor

from elman.nn.state import State

NOTHING = -1
"""Fills the state before the first token."""


def read_on(state: State, tokens_BT: Tensor) -> State:
    """Append tokens to the context, keeping its length."""
    context_BC = state.tensor("context").cpu()
    joined = torch.cat([context_BC, tokens_BT.cpu().long()], dim=1)
    return State({"context": joined[:, tokens_BT.shape[1] :]})
