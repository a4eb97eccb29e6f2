"""The n-gram model (`elman.ngrams.backoff`) as a `LanguageModel`.

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
from elman.ngrams.arpa_files import open_arpa
from elman.ngrams.backoff import BackoffModel
from elman.ngrams.storage import MODEL_FILE, load
from elman.nn.shapes import Float, Int
from elman.nn.state import State
from elman.runs.run_folder import check_vocabulary
from elman.tasks.counted import open_tokenizer
from elman.tasks.ngram.settings import NgramRun
from elman.tokens.tokenizer import Tokenizer


class NgramLM:
    """A back-off model of n-grams."""

    def __init__(self, ngrams: BackoffModel) -> None:
        self.ngrams = ngrams

    @property
    def vocab_size(self) -> int:
        return self.ngrams.vocab_size

    @property
    def order(self) -> int:
        return self.ngrams.order

    def initial_state(self, batch_size: int) -> State:
        return empty_context(batch_size, self.order - 1)

    def step(self, tokens_B: Int[Tensor, "B"], state: State) -> tuple[Float[Tensor, "B V"], State]:
        """Read one token; return the log probability of every next token."""
        after = append_tokens(state, tokens_B[:, None])
        contexts_B = self.ngrams.after(after.tensor("context").numpy())
        return torch.from_numpy(self.ngrams.distributions(contexts_B)), after

    def logprobs(
        self, tokens_BT: Int[Tensor, "B T"], targets_BT: Int[Tensor, "B T"], state: State
    ) -> tuple[Float[Tensor, "B T"], State]:
        """Read T tokens; return the log probability of each one's target."""
        contexts_B = self.ngrams.after(state.tensor("context").cpu().numpy())
        logprobs_BT = self.ngrams.score_rows(
            tokens_BT.cpu().numpy(), targets_BT.cpu().numpy(), contexts_B
        )
        return torch.from_numpy(logprobs_BT), append_tokens(state, tokens_BT)


def open_fitted(path: Path, config: NgramRun) -> tuple[NgramLM, Tokenizer, dict[str, Any]]:
    """Open the model in a run folder, with its tokenizer and the header of its file."""
    tokenizer = open_tokenizer(path, MODEL_FILE)
    ngrams, header = load(path / MODEL_FILE)
    check_vocabulary(path, tokenizer, header)
    return NgramLM(ngrams), tokenizer, header


def load_arpa(path: Path, *, keep: bool = True) -> tuple[NgramLM, Tokenizer, list[str]]:
    """Open an ARPA file: the model, its tokenizer, and notes for the user; see `open_arpa`."""
    ngrams, tokenizer = open_arpa(path, keep=keep)
    return NgramLM(ngrams), tokenizer, ngrams.about["notes"]
