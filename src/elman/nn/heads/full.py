"""The softmax over the whole vocabulary: y = softmax(V h + b).

N rows, V vocabulary, H hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elman.nn.heads.cross_entropy import target_logprobs
from elman.nn.heads.head import Head, OutputMatrix


@dataclass(frozen=True, kw_only=True)
class FullConfig:
    """A softmax over the whole vocabulary."""

    kind: Literal["full"] = "full"
    """A softmax over the whole vocabulary."""
    unigram_bias: bool = True
    """Whether the bias starts at the words' log frequencies."""

    def build(
        self,
        hidden_size: int,
        vocab_size: int,
        *,
        tied_to: nn.Embedding | None = None,
        counts_V: Tensor | None = None,
    ) -> Full:
        """A fresh output layer."""
        counts_V = counts_V if self.unigram_bias else None
        return Full(hidden_size, vocab_size, tied_to=tied_to, counts_V=counts_V)


class Full(Head):
    """softmax(V h + b), the matrix V its own or tied to the embedding's."""

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        *,
        tied_to: nn.Embedding | None = None,
        counts_V: Tensor | None = None,
    ) -> None:
        super().__init__(hidden_size, vocab_size)
        self.output = OutputMatrix(hidden_size, vocab_size, tied_to, counts_V)

    def _logprobs_all(self, hidden_NH: Tensor) -> Tensor:
        logits_NV = F.linear(hidden_NH, self.output.weight, self.output.bias)
        return torch.log_softmax(logits_NV.float(), dim=-1)

    def _logprobs(self, hidden_NH: Tensor, targets_N: Tensor) -> Tensor:
        return target_logprobs(hidden_NH, self.output.weight, self.output.bias, targets_N)
