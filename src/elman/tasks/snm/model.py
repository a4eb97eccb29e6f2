"""The sparse non-negative matrix model (`sparse_matrix`) as a `LanguageModel`.

The state is the last order - 1 tokens. The model stays on the CPU, in a memory-mapped file, and
accepts tokens from any device.

B batch, T time steps, C tokens of context, V vocabulary.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elman.models.last_tokens import append_tokens, empty_context
from elman.nn.shapes import Float, Int
from elman.nn.state import State
from elman.runs.run_folder import check_vocabulary
from elman.tasks.counted import open_tokenizer
from elman.tasks.snm.settings import SNMRun
from elman.tasks.snm.sparse_matrix import MODEL_FILE, SparseMatrixModel, load_matrix
from elman.tokens.tokenizer import Tokenizer


class SNMLM:
    """A sparse non-negative matrix of n-grams and skip-grams."""

    def __init__(self, matrix: SparseMatrixModel) -> None:
        self.matrix = matrix

    @property
    def vocab_size(self) -> int:
        return self.matrix.vocab_size

    def initial_state(self, batch_size: int) -> State:
        return empty_context(batch_size, self.matrix.order - 1)

    def step(self, tokens_B: Int[Tensor, "B"], state: State) -> tuple[Float[Tensor, "B V"], State]:
        """Read one token; return the log probability of every next token."""
        after = append_tokens(state, tokens_B[:, None])
        logprobs_BV = self.matrix.distributions(after.tensor("context").numpy())
        return torch.from_numpy(logprobs_BV), after

    def logprobs(
        self, tokens_BT: Int[Tensor, "B T"], targets_BT: Int[Tensor, "B T"], state: State
    ) -> tuple[Float[Tensor, "B T"], State]:
        """Read T tokens; return the log probability of each one's target."""
        logprobs_BT = self.matrix.score_rows(
            tokens_BT.cpu().numpy(), targets_BT.cpu().numpy(), state.tensor("context").cpu().numpy()
        )
        return torch.from_numpy(logprobs_BT), append_tokens(state, tokens_BT)


def open_fitted(path: Path, config: SNMRun) -> tuple[SNMLM, Tokenizer, dict[str, Any]]:
    """Open the model in a run folder, with its tokenizer and the header of its file."""
    tokenizer = open_tokenizer(path, MODEL_FILE)
    matrix, header = load_matrix(path / MODEL_FILE)
    check_vocabulary(path, tokenizer, header)
    return SNMLM(matrix), tokenizer, header
