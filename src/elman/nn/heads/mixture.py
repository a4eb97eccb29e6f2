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
from torch import Tensor, nn

from elman.base.config import at_least, between, refuse_unread
from elman.nn.dropout import Dropout
from elman.nn.heads.head import Head, HeadConfig
from elman.nn.heads.softmax import Softmax, log_softmax
from elman.nn.shapes import Float, Int


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
        self.dropout = Dropout(config.dropout, locked=config.locked)
        self.adversarial = config.adversarial
        self.exact = not self.adversarial
        width = hidden_size if tied_to is None else tied_to.embedding_dim
        self.width = width
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

    def losses(
        self,
        hidden: Float[Tensor, "*batch H"],
        targets: Int[Tensor, "*batch"],
        contexts: Int[Tensor, "*batch O"] | None = None,
    ) -> Float[Tensor, "*batch"]:
        """Return the training loss of each target. Not flattened first: the dropout may be locked
        in time."""
        return -self._scores(hidden, targets.flatten(), self.adversarial).view(targets.shape)

    def _logprobs(self, hidden_NH: Tensor, targets_N: Tensor, contexts_NO: Tensor | None) -> Tensor:
        return self._scores(hidden_NH, targets_N, 0.0)

    def _scores(self, hidden: Tensor, targets_N: Tensor, adversarial: float) -> Tensor:
        priors_NK, contexts_NKE = self._components(hidden)
        vectors, words = contexts_NKE.flatten(0, 1), _repeated(targets_N, self.num_components)
        if adversarial:
            each = self.softmax.adversarial_logprobs(vectors, words, adversarial)
        else:
            each = self.softmax.logprobs(vectors, words, equal_weights=False)
        return torch.logsumexp(priors_NK + each.view_as(priors_NK), dim=1)

    def _components(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log weights of the components, and the vector that each reads."""
        contexts = self.dropout(torch.tanh(self.latent(hidden)))
        priors = log_softmax(self.prior(hidden))
        contexts_NKE = contexts.reshape(-1, self.num_components, self.width)
        return priors.reshape(-1, self.num_components), contexts_NKE


def _repeated(targets_N: Tensor, times: int) -> Tensor:
    """Repeat each target, without waiting for the device as `repeat_interleave` does."""
    return targets_N[:, None].expand(-1, times).flatten()


@dataclass(frozen=True, kw_only=True)
class MixtureConfig(HeadConfig):
    """A mixture of softmaxes (Yang and others, 2018)."""

    layer = MixtureOfSoftmaxes
    own_width: ClassVar[bool] = True

    kind: Literal["mixture"] = "mixture"
    num_components: int = 5
    """Number of softmaxes."""
    dropout: float = 0.0
    """Dropout on the input of the softmaxes."""
    locked: bool = False
    """Whether the mask of that dropout stays the same over time."""
    adversarial: float = 0.0
    """Lower the logit of the true word in training by this times the lengths of its vector and of
    the hidden vector (adversarial softmax: Wang, Gong and Liu, 2019; 0.005 to 0.03)."""

    def __post_init__(self) -> None:
        at_least("model.head.num_components", self.num_components, 1)
        for name in ("dropout", "adversarial"):
            between(f"model.head.{name}", getattr(self, name), 0, 1, below=True)
        if not self.dropout:
            refuse_unread(self, "model.head", ["locked"], "dropout to more than 0")
