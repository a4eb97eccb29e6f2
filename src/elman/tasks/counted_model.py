"""Wrap models of counts as `LanguageModel`s.

The state is the last order - 1 tokens. The model stays on the CPU, in memory or in a mapped file,
and accepts tokens from any device.

B batch, T time steps, C tokens of context, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor

from elman.ngrams.mapped import damaged
from elman.nn.shapes import Float, Int
from elman.nn.state import State
from elman.runs.run_folder import require
from elman.tasks.opening import checked_tokenizer
from elman.tokens.tokenizer import Tokenizer

NOTHING = -1
"""Padding before the first token."""


class Counts(Protocol):
    """A model of counts, over NumPy arrays. Contexts are padded with -1."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def boundary_id(self) -> int: ...

    @property
    def order(self) -> int: ...  # tokens that a prediction depends on, itself included

    def check_unchanged(self) -> None: ...

    def distributions(self, contexts_BC: NDArray[Any]) -> NDArray[Any]: ...

    def score_rows(
        self, tokens_BT: NDArray[Any], targets_BT: NDArray[Any], contexts_BC: NDArray[Any]
    ) -> NDArray[Any]: ...


C = TypeVar("C", bound=Counts)


class CountedLM(Generic[C]):
    """A language model of counts."""

    def __init__(self, counts: C) -> None:
        self.counts = counts

    @property
    def vocab_size(self) -> int:
        return self.counts.vocab_size

    @property
    def reach(self) -> int:
        """Number of tokens that a prediction depends on."""
        return self.counts.order - 1

    def check_unchanged(self) -> None:
        """Raise an error if the model's file was written to since it was opened.

        Reading and predicting do this too.
        """
        self.counts.check_unchanged()

    def initial_state(self, batch_size: int) -> State:
        return State({"context": torch.full((batch_size, self.counts.order - 1), NOTHING)})

    def step(self, tokens_B: Int[Tensor, "B"], state: State) -> tuple[Float[Tensor, "B V"], State]:
        """Read one token; return the log probability of every next token."""
        after = _append(state, tokens_B[:, None])
        return torch.from_numpy(self.counts.distributions(after.tensor("context").numpy())), after

    def logprobs(
        self, tokens_BT: Int[Tensor, "B T"], targets_BT: Int[Tensor, "B T"], state: State
    ) -> tuple[Float[Tensor, "B T"], State]:
        """Read T tokens; return the log probability of each one's target."""
        logprobs_BT = self.counts.score_rows(
            tokens_BT.cpu().numpy(), targets_BT.cpu().numpy(), state.tensor("context").cpu().numpy()
        )
        return torch.from_numpy(logprobs_BT), _append(state, tokens_BT)


def _append(state: State, tokens_BT: Tensor) -> State:
    """Append T tokens to the context and keep the last C."""
    context_BC = state.tensor("context").cpu()
    joined = torch.cat([context_BC, tokens_BT.cpu().long()], dim=1)
    return State({"context": joined[:, tokens_BT.shape[1] :]})


def open_counts(
    path: Path, model_file: str, load: Callable[[Path], tuple[C, dict[str, Any]]]
) -> tuple[CountedLM[C], Tokenizer, dict[str, Any]]:
    """Open the model in a run folder, with its tokenizer and the header of its file."""
    require(path, model_file)
    counts, header = load(path / model_file)
    tokenizer = checked_tokenizer(path, header)
    found = (tokenizer.vocab_size, tokenizer.boundary_id)
    if found != (counts.vocab_size, counts.boundary_id):
        raise damaged(path / model_file, "it does not belong to the tokenizer beside it")
    return CountedLM(counts), tokenizer, header
