"""The softmax that output layers are made of: softmax(V h + b), with its own matrix or an
embedding's, optionally with the scores of hashed n-grams.

N rows, V vocabulary, H hidden, O orders of n-grams, X slots of their table.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elman.nn.hashed_ngrams import HashedNgrams
from elman.nn.heads.cross_entropy import target_logprobs
from elman.nn.kernels import stream
from elman.nn.shapes import Float, Int


class Softmax(nn.Module):
    """softmax(V h + b). `tied_to` gives the matrix of an embedding (Press and Wolf, 2017).

    A tied matrix is registered only in the embedding, so it is saved once. The bias starts at the
    log word frequencies if they are known, which is what a model would learn first.
    """

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        *,
        tied_to: nn.Embedding | None = None,
        counts_V: Tensor | None = None,
    ) -> None:
        super().__init__()
        # In a tuple, so that nn.Module does not register it.
        self._tied_to: tuple[nn.Embedding, ...] = () if tied_to is None else (tied_to,)
        self.own_weight = (
            nn.Parameter(small_uniform(vocab_size, hidden_size)) if tied_to is None else None
        )
        self.bias = nn.Parameter(torch.zeros(vocab_size))
        self.ngrams: HashedNgrams | None = None
        self.int8: Any = None
        """The matrix quantised to one byte per weight (`nn/quantise.py`)."""
        if counts_V is not None:
            with torch.no_grad():
                self.bias.copy_(unigram(counts_V).log())

    @property
    def weight(self) -> Tensor:
        """The matrix (V, H), its own or the embedding's."""
        return self._tied_to[0].weight if self.own_weight is None else self.own_weight

    def connect_ngrams(self, num_slots: int) -> None:
        self.ngrams = HashedNgrams(num_slots)

    def claim(self, targets_N: Int[Tensor, "N"], contexts_NO: Int[Tensor, "N O"] | None) -> None:
        """In training, let the n-grams of the targets claim slots of the table."""
        if self.training and self.ngrams is not None and contexts_NO is not None:
            self.ngrams.claim(contexts_NO, targets_N)

    def logprobs_all(
        self, hidden_NH: Float[Tensor, "N H"], contexts_NO: Int[Tensor, "N O"] | None = None
    ) -> Float[Tensor, "N V"]:
        """Return the log probability of every word."""
        if contexts_NO is None and stream.is_stream(hidden_NH):
            return stream.log_softmax(self.weight, self.int8, self.bias, hidden_NH)
        logits_NV = F.linear(hidden_NH, self.weight, self.bias)
        if self.ngrams is not None and contexts_NO is not None:
            logits_NV = logits_NV + self.ngrams.scores_of_all(contexts_NO, len(self.bias))
        return log_softmax(logits_NV)

    def logprobs(
        self,
        hidden_NH: Float[Tensor, "N H"],
        targets_N: Int[Tensor, "N"],
        contexts_NO: Int[Tensor, "N O"] | None = None,
        *,
        equal_weights: bool = True,
    ) -> Float[Tensor, "N"]:
        """Return the log probability of each row's target; see `target_logprobs`."""
        return target_logprobs(
            hidden_NH,
            self.weight,
            self.bias,
            targets_N,
            contexts_NO,
            None if self.ngrams is None else self.ngrams.weight,
            None if self.ngrams is None else self.ngrams.owners,
            equal_weights=equal_weights,
        )

    def adversarial_logprobs(
        self, hidden_NH: Float[Tensor, "N H"], targets_N: Int[Tensor, "N"], epsilon: float
    ) -> Float[Tensor, "N"]:
        """As `logprobs`, with the vector w of each target moved by `epsilon` |w| against h, which
        lowers its logit w h by s = `epsilon` |w| |h| (Wang, Gong and Liu, 2019); not where w h is
        negative already. As in the authors' code, the move is a constant for the gradient.

        From the probability p without it follows p' = p e^-s / (1 - p + p e^-s).
        """
        logprobs_N = self.logprobs(hidden_NH, targets_N, equal_weights=False)
        wide = logprobs_N.dtype
        target_NH = F.embedding(targets_N, self.weight.detach()).to(wide)
        with torch.autocast(hidden_NH.device.type, enabled=False):
            hidden_NH = hidden_NH.to(wide)
            is_positive_N = (target_NH * hidden_NH.detach()).sum(dim=1) > 0
            # A small number under the root: the gradient of |0| would be NaN.
            lengths_N = (hidden_NH.square().sum(dim=1) + 1e-8).sqrt()
            s_N = epsilon * target_NH.norm(dim=1) * is_positive_N * lengths_N
            lowered_N: Tensor = logprobs_N - s_N
            return lowered_N - torch.log1p(logprobs_N.exp() * torch.expm1(-s_N))


def log_softmax(logits: Float[Tensor, "*batch V"]) -> Float[Tensor, "*batch V"]:
    """Compute the log softmax in float32 or wider."""
    return torch.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), dim=-1)


def unigram(
    counts_V: Float[Tensor, "V"] | Int[Tensor, "V"], power: float = 1.0
) -> Float[Tensor, "V"]:
    """Return add-one-smoothed word frequencies to a power, summing to one, in float64."""
    weights_V = (counts_V.double() + 1).pow(power)
    return weights_V / weights_V.sum()


def small_uniform(*shape: int) -> Tensor:
    """Draw from [-0.1, 0.1]: initially each word is about as probable as its bias says."""
    return torch.empty(*shape).uniform_(-0.1, 0.1)
