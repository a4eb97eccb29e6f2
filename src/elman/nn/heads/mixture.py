"""The mixture of softmaxes (Yang and others, 2018): several softmaxes with context-dependent
weights.

A single softmax can only express log probabilities of rank H; the mixture has no such limit. With K
components,

    P(w | h) = sum over k of pi_k(h) softmax(V tanh(L_k h) + b)_w,        pi(h) = softmax(P h)

N rows, V vocabulary, H hidden, E width of the output matrix, K components.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elman.base.config import at_least, between
from elman.nn.heads.head import Head, HeadConfig
from elman.nn.heads.softmax import Softmax, log_softmax


class MixtureOfSoftmaxes(Head):
    """Softmaxes over one output matrix, each with its own projection of the hidden vector."""

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        tied_to: nn.Embedding | None,
        counts_V: Tensor | None,
        config: MixtureConfig,
    ) -> None:
        super().__init__(hidden_size, vocab_size)
        self.num_components = config.num_components
        self.dropout = config.dropout
        width = hidden_size if tied_to is None else tied_to.embedding_dim
        self.prior = nn.Linear(hidden_size, config.num_components, bias=False)
        self.latent = nn.Linear(hidden_size, config.num_components * width)
        counts_V = counts_V if config.unigram_bias else None
        self.softmax = Softmax(width, vocab_size, tied_to=tied_to, counts_V=counts_V)

    def _logprobs_all(self, hidden_NH: Tensor, contexts_NO: Tensor | None) -> Tensor:
        priors_NK, contexts_NKE = self._components(hidden_NH)
        logprobs_NV = self.softmax.logprobs_all(contexts_NKE[:, 0]) + priors_NK[:, :1]
        for k in range(1, self.num_components):  # in turn: K times less memory
            logprobs_k_NV = self.softmax.logprobs_all(contexts_NKE[:, k]) + priors_NK[:, k : k + 1]
            logprobs_NV = torch.logaddexp(logprobs_NV, logprobs_k_NV)
        return logprobs_NV

    def _logprobs(self, hidden_NH: Tensor, targets_N: Tensor, contexts_NO: Tensor | None) -> Tensor:
        priors_NK, contexts_NKE = self._components(hidden_NH)
        each = self.softmax.logprobs(
            contexts_NKE.flatten(0, 1),
            targets_N.repeat_interleave(self.num_components),
            equal_weights=False,
        )
        return torch.logsumexp(priors_NK + each.view_as(priors_NK), dim=1)

    def _components(self, hidden_NH: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log weights of the components, and the vector that each reads."""
        contexts = torch.tanh(self.latent(hidden_NH))
        contexts = F.dropout(contexts, self.dropout, self.training)
        contexts_NKE = contexts.view(len(hidden_NH), self.num_components, -1)
        return log_softmax(self.prior(hidden_NH)), contexts_NKE


@dataclass(frozen=True, kw_only=True)
class MixtureConfig(HeadConfig):
    """A mixture of softmaxes."""

    layer = MixtureOfSoftmaxes
    own_width: ClassVar[bool] = True

    kind: Literal["mixture"] = "mixture"
    num_components: int = 5
    """Number of softmaxes."""
    dropout: float = 0.0
    """Dropout on the input of the softmaxes."""

    def __post_init__(self) -> None:
        at_least("model.head.num_components", self.num_components, 1)
        between("model.head.dropout", self.dropout, 0, 1, below=True)
