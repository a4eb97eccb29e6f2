"""Language models that depend on a fixed number of previous tokens: models of counts.

The state is the last order - 1 tokens. The model stays on the CPU, in a memory-mapped file, and
accepts tokens from any device.

B batch, T time steps, C tokens of context, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from elman.nn.shapes import Float, Int
from elman.nn.state import State

NOTHING = -1
"""Padding before the first token."""


class LastTokensLM(ABC):
    """A `LanguageModel` over arrays of ids, which subclasses score."""

    vocab_size: int
    order: int

    @abstractmethod
    def distributions(self, contexts_BC: NDArray[Any]) -> NDArray[Any]:
        """Return the (B, V) log probabilities of every token after each context."""

    @abstractmethod
    def score_rows(
        self, tokens_BT: NDArray[Any], targets_BT: NDArray[Any], contexts_BC: NDArray[Any]
    ) -> NDArray[Any]:
        """Return the (B, T) log probabilities of targets after the context and the tokens."""

    def initial_state(self, batch_size: int) -> State:
        return State({"context": torch.full((batch_size, self.order - 1), NOTHING)})

    def step(self, tokens_B: Int[Tensor, "B"], state: State) -> tuple[Float[Tensor, "B V"], State]:
        """Read one token; return the log probability of every next token."""
        after = _append(state, tokens_B[:, None])
        return torch.from_numpy(self.distributions(after.tensor("context").numpy())), after

    def logprobs(
        self, tokens_BT: Int[Tensor, "B T"], targets_BT: Int[Tensor, "B T"], state: State
    ) -> tuple[Float[Tensor, "B T"], State]:
        """Read T tokens; return the log probability of each one's target."""
        context_BC = state.tensor("context").cpu().numpy()
        logprobs_BT = self.score_rows(tokens_BT.cpu().numpy(), targets_BT.cpu().numpy(), context_BC)
        return torch.from_numpy(logprobs_BT), _append(state, tokens_BT)


def _append(state: State, tokens_BT: Tensor) -> State:
    """Append T tokens to the context and keep the last C."""
    context_BC = state.tensor("context").cpu()
    joined = torch.cat([context_BC, tokens_BT.cpu().long()], dim=1)
    return State({"context": joined[:, tokens_BT.shape[1] :]})
