"""The n-gram model without a limit on n as a `LanguageModel`.

The state of a row is its longest match: a position in the training text and a length.

B batch, T time steps, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from elman.ngrams.suffix_array import DEPTH
from elman.ngrams.unbounded import UnboundedModel
from elman.nn.shapes import Float, Int
from elman.nn.state import State


class UnboundedLM:
    """A language model of an indexed text. It stays on the CPU, in a mapped file."""

    def __init__(self, counts: UnboundedModel) -> None:
        self.counts = counts

    @property
    def vocab_size(self) -> int:
        return self.counts.vocab_size

    @property
    def reach(self) -> int:
        """Number of tokens that a prediction can depend on."""
        return DEPTH - 1

    def check_unchanged(self) -> None:
        """Raise an error if a file of the model was written to since it was opened."""
        self.counts.check_unchanged()

    def initial_state(self, batch_size: int) -> State:
        return State({"match": torch.zeros(batch_size, 2, dtype=torch.long)})

    def step(self, tokens_B: Int[Tensor, "B"], state: State) -> tuple[Float[Tensor, "B V"], State]:
        """Read one token; return the log probability of every next token."""
        self.check_unchanged()
        match_B2 = state.tensor("match").cpu().numpy()
        logprobs_BV, after_B2 = self.counts.distributions(tokens_B.cpu().numpy(), match_B2)
        return torch.from_numpy(logprobs_BV), State({"match": torch.from_numpy(after_B2)})

    def logprobs(
        self, tokens_BT: Int[Tensor, "B T"], targets_BT: Int[Tensor, "B T"], state: State
    ) -> tuple[Float[Tensor, "B T"], State]:
        """Read T tokens; return the log probability of each one's target."""
        self.check_unchanged()
        match_B2 = state.tensor("match").cpu().numpy()
        logprobs_BT, after_B2 = self.counts.score_rows(
            tokens_BT.cpu().numpy(), targets_BT.cpu().numpy(), match_B2
        )
        return torch.from_numpy(logprobs_BT), State({"match": torch.from_numpy(after_B2)})
