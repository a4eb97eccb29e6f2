"""A language model that is a table: its next-token distributions are known exactly."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from elman.nn.state import State


class TableLM:
    """Log probabilities of the next token given the last two."""

    def __init__(self, logprobs_VVV: Tensor) -> None:
        self.logprobs_VVV = logprobs_VVV
        self.batch_sizes: list[int] = []

    @property
    def vocab_size(self) -> int:
        return self.logprobs_VVV.shape[-1]

    def initial_state(self, batch_size: int) -> State:
        return State({"last": torch.zeros(batch_size, dtype=torch.long)})

    def step(self, tokens_B: Tensor, state: State) -> tuple[Tensor, State]:
        self.batch_sizes.append(len(tokens_B))
        return self.logprobs_VVV[state.tensor("last"), tokens_B], State({"last": tokens_B})

    def logprobs(self, tokens_BT: Tensor, targets_BT: Tensor, state: State) -> tuple[Tensor, State]:
        rows = []
        for tokens_B, targets_B in zip(tokens_BT.unbind(1), targets_BT.unbind(1), strict=True):
            logprobs_BV, state = self.step(tokens_B, state)
            rows.append(logprobs_BV.gather(1, targets_B[:, None])[:, 0])
        return torch.stack(rows, dim=1), state


def random_table(vocab_size: int = 6, seed: int = 0, scale: float = 1.5) -> TableLM:
    generator = torch.Generator().manual_seed(seed)
    logits_VVV = scale * torch.randn(vocab_size, vocab_size, vocab_size, generator=generator)
    return TableLM(logits_VVV.log_softmax(dim=-1))


@pytest.fixture(scope="session")
def table_lm() -> Callable[..., TableLM]:
    return random_table


@pytest.fixture(scope="session")
def table_of() -> Callable[[Tensor], TableLM]:
    """A model with the given table."""
    return TableLM
