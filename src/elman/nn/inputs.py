"""The input layer of a language model: token ids to vectors.

B batch, T time steps, V vocabulary, E embedding.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elman.nn.dropout import Dropout, drop_rows
from elman.nn.kernels import lookup
from elman.nn.shapes import Float, Int


class Lookup(nn.Module):
    """x = E w, a row of the embedding matrix per token; training may drop whole words."""

    def __init__(
        self,
        vocab_size: int,
        embedding_size: int,
        *,
        dropout: float = 0.0,
        tied: bool = False,
        scale: float = 1.0,
    ) -> None:
        """`tied`: the matrix is also an output layer's. `scale` multiplies the vectors
        looked up."""
        super().__init__()
        # Normal with deviation 1, about the scale after training. (On tinyshakespeare, uniform
        # within 0.1 is 0.13 nats per character worse after 300 steps.)
        self.embedding = nn.Embedding(vocab_size, embedding_size)
        if tied:  # as an output matrix that would give overconfident predictions at first
            nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.dropout = dropout
        self.tied = tied
        self.scale = scale

    def forward(
        self, tokens: Int[Tensor, "*batch"], dropout: Dropout | None = None
    ) -> Float[Tensor, "*batch E"]:
        """The vectors of the tokens, after `dropout`."""
        if tokens.dim() != 2:
            vectors = self._look_up(tokens)
            return vectors if dropout is None else dropout(vectors)
        # Time first in memory, which saves the recurrent kernels a copy.
        if (found := self._by_loop(tokens, dropout)) is not None:
            return found.transpose(0, 1)
        vectors_BTE = self._look_up(tokens.t()).transpose(0, 1)
        return vectors_BTE if dropout is None else dropout(vectors_BTE)

    def _by_loop(self, tokens_BT: Tensor, dropout: Dropout | None) -> Tensor | None:
        """In a training run on a CPU: vectors after all dropout, time first, whose gradient is
        sparse."""
        weight, is_locked = self.embedding.weight, dropout is None or dropout.locked
        is_sparse = self.embedding.sparse and torch.is_grad_enabled() and not self.tied
        if not (is_sparse and is_locked and self.scale == 1.0 and lookup.serves(weight)):
            return None
        drops_words = self.training and self.dropout
        kept_V1 = drop_rows(weight, self.dropout) if drops_words else None
        like_BTE = weight[:1].expand(*tokens_BT.shape, -1)
        mask_B1E = None if dropout is None else dropout.mask(like_BTE)
        return lookup.looked_up(weight, tokens_BT.t(), kept_V1, mask_B1E)

    def all_types(self) -> Float[Tensor, "V E"]:
        """Return the vector of every word of the vocabulary (type-based embeddings)."""
        return self.embedding.weight

    def _look_up(self, tokens: Tensor) -> Tensor:
        weight = self.embedding.weight
        # The output layer's gradient of a tied matrix is dense. On a CPU a sparse one is added to
        # it, instead of a second matrix that is zero but for a few rows.
        is_sparse = self.embedding.sparse or (self.tied and weight.device.type == "cpu")
        vectors = F.embedding(tokens, weight, sparse=is_sparse)
        if self.training and self.dropout:
            kept_V1 = drop_rows(weight, self.dropout)
            vectors = vectors * F.embedding(tokens, kept_V1)
        return vectors if self.scale == 1.0 else vectors * self.scale
