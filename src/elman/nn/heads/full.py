"""The softmax over the whole vocabulary: y = softmax(V h + b).

N rows, V vocabulary, H hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from elman.base.config import between
from elman.base.errors import UsageError
from elman.nn.heads.cross_entropy import smoothed_logprobs
from elman.nn.heads.head import Head, HeadConfig
from elman.nn.heads.softmax import Softmax
from elman.nn.shapes import Float, Int


class Full(Head):
    """softmax(V h + b), with its own matrix V or the embedding's."""

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        tied_to: nn.Embedding | None = None,
        counts_V: Tensor | None = None,
        config: FullConfig | None = None,
    ) -> None:
        super().__init__(hidden_size, vocab_size)
        self.adversarial = 0.0 if config is None else config.adversarial
        self.exact = not self.adversarial
        if config is not None and not config.unigram_bias:
            counts_V = None
        self.softmax = Softmax(hidden_size, vocab_size, tied_to=tied_to, counts_V=counts_V)

    def connect_ngrams(self, num_slots: int) -> None:
        if self.adversarial:
            raise UsageError(
                "an adversarial softmax has no direct connections from n-grams",
                "leave out model.head.adversarial, or model.maxent_order",
            )
        self.softmax.connect_ngrams(num_slots)

    def _logprobs_all(self, hidden_NH: Tensor, contexts_NO: Tensor | None) -> Tensor:
        return self.softmax.logprobs_all(hidden_NH, contexts_NO)

    def _logprobs(self, hidden_NH: Tensor, targets_N: Tensor, contexts_NO: Tensor | None) -> Tensor:
        return self.softmax.logprobs(hidden_NH, targets_N, contexts_NO)

    def smoothed_losses(
        self,
        hidden_NH: Float[Tensor, "N H"],
        targets_N: Int[Tensor, "N"],
        smoothing: float,
        contexts_NO: Int[Tensor, "N O"] | None = None,
    ) -> tuple[Float[Tensor, "N"], Float[Tensor, "N"]]:
        if hidden_NH.device.type != "cpu" or contexts_NO is not None:
            return super().smoothed_losses(hidden_NH, targets_N, smoothing, contexts_NO)
        matrix, bias = self.softmax.weight, self.softmax.bias
        smoothed_N, logprobs_N = smoothed_logprobs(hidden_NH, matrix, bias, targets_N, smoothing)
        return -smoothed_N, -logprobs_N

    def _losses(self, hidden_NH: Tensor, targets_N: Tensor, contexts_NO: Tensor | None) -> Tensor:
        self.softmax.claim(targets_N, contexts_NO)
        if self.adversarial:
            return -self.softmax.adversarial_logprobs(hidden_NH, targets_N, self.adversarial)
        return super()._losses(hidden_NH, targets_N, contexts_NO)


@dataclass(frozen=True, kw_only=True)
class FullConfig(HeadConfig):
    """A softmax over the whole vocabulary."""

    layer = Full

    kind: Literal["full"] = "full"
    adversarial: float = 0.0
    """Lower the logit of the true word in training by this times the lengths of its vector and of
    the hidden vector (adversarial softmax: Wang, Gong and Liu, 2019; 0.005 to 0.03)."""

    def __post_init__(self) -> None:
        between("model.head.adversarial", self.adversarial, 0, 1, below=True)
