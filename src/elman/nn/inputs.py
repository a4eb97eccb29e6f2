"""From token ids to vectors: the input side of a language model.

B batch, T time steps, V vocabulary, E embedding.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from elman.nn.dropout import drop_rows
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
        """`tied` is for a matrix that is an output layer's too; what is looked up in it can be
        multiplied by `scale`."""
        super().__init__()
        # Normal with deviation 1: what the first layer reads has the size of what it will read. (On
        # tinyshakespeare, uniform within 0.1 is behind by 0.13 nats per character after 300 steps.)
        self.embedding = nn.Embedding(vocab_size, embedding_size)
        if tied:  # but as an output matrix such numbers would begin far too sure of themselves
            nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.dropout = dropout
        self.scale = scale

    def forward(self, tokens: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch E"]:
        """The vectors of the tokens."""
        if tokens.dim() == 2:
            # Laid out time first, as the recurrent kernels want it: they will not have to copy.
            return self._look_up(tokens.t()).transpose(0, 1)
        return self._look_up(tokens)

    def all_types(self) -> Float[Tensor, "V E"]:
        """The vector of every word of the vocabulary (type-based embeddings)."""
        return self.embedding.weight

    def _look_up(self, tokens: Tensor) -> Tensor:
        vectors: Tensor = self.embedding(tokens)
        if self.training and self.dropout:
            kept_V1 = drop_rows(self.embedding.weight, self.dropout)
            vectors = vectors * F.embedding(tokens, kept_V1)
        return vectors if self.scale == 1.0 else vectors * self.scale
