"""The softmax that output layers are made of, softmax(V h + b), with a matrix of its own or an
embedding's, and with the scores of hashed n-grams where they are connected.

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

    A tied matrix stays the embedding's parameter and is not registered here again: it is saved
    once. The bias starts at the words' log frequencies where they are known: the first thing that a
    model would learn otherwise.
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
        # In a tuple, where nn.Module does not look for parameters.
        self._tied_to: tuple[nn.Embedding, ...] = () if tied_to is None else (tied_to,)
        self.own_weight = (
            nn.Parameter(small_uniform(vocab_size, hidden_size)) if tied_to is None else None
        )
        self.bias = nn.Parameter(torch.zeros(vocab_size))
        self.ngrams: HashedNgrams | None = None
        self.int8: Any = None
        """The matrix as weights of one byte, once the model has been quantised."""
        if counts_V is not None:
            with torch.no_grad():
                self.bias.copy_(unigram(counts_V).log())

    @property
    def weight(self) -> Tensor:
        """The matrix (V, H), whoever owns it."""
        return self._tied_to[0].weight if self.own_weight is None else self.own_weight

    def connect_ngrams(self, num_slots: int) -> None:
        """Add the scores of hashed n-grams, from a table of so many slots."""
        self.ngrams = HashedNgrams(num_slots)

    def claim(self, targets_N: Int[Tensor, "N"], contexts_NO: Int[Tensor, "N O"] | None) -> None:
        """In training, let the n-grams of the targets have slots of the table."""
        if self.training and self.ngrams is not None and contexts_NO is not None:
            self.ngrams.claim(contexts_NO, targets_N)

    def logprobs_all(
        self, hidden_NH: Float[Tensor, "N H"], contexts_NO: Int[Tensor, "N O"] | None = None
    ) -> Float[Tensor, "N V"]:
        """The log probability of every word."""
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
        """The log probability of each row's target; see `target_logprobs`."""
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


def log_softmax(logits: Float[Tensor, "*batch V"]) -> Float[Tensor, "*batch V"]:
    """log softmax in float32 at least, whatever the logits came in."""
    return torch.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), dim=-1)


def unigram(
    counts_V: Float[Tensor, "V"] | Int[Tensor, "V"], power: float = 1.0
) -> Float[Tensor, "V"]:
    """The words' frequencies (each seen once more) to a power, summing to one, in float64."""
    weights_V = (counts_V.double() + 1).pow(power)
    return weights_V / weights_V.sum()


def small_uniform(*shape: int) -> Tensor:
    """Numbers within 0.1 of zero: every word starts out about as probable as its bias says."""
    return torch.empty(*shape).uniform_(-0.1, 0.1)
