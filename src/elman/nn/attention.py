"""Attention of a decoder over its input: scores, weights and the context vector.

    score(q, m_j)      how relevant position j of the memory is to the query q
        dot            q . m_j
        bilinear       q W m_j, with learned weights W
        additive       v . tanh(W_q q + W_m m_j)                    (Bahdanau and others, 2015)
    a_j = softmax over j of score(q, m_j)
    c = sum over j of a_j m_j                                       the context

The memory is a sequence of S vectors: an encoder's outputs, or a flattened feature map of a
picture. The part of a score that depends only on the memory is computed once (`keys`) and reused.

B batch, T queries, S source steps, H query size, M memory size, X key size.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from elman.base.errors import UsageError
from elman.nn.shapes import Bool, Float

AttentionKind = Literal["dot", "bilinear", "additive"]

MOST_SUMS = 1 << 24
"""Limit on the numbers held at a time for additive scores, which need a vector for each pair of
query and position."""


class Attention(nn.Module):
    """Weights over a memory, and its weighted mean."""

    def __init__(
        self, kind: AttentionKind, query_size: int, memory_size: int, hidden_size: int = 0
    ) -> None:
        """`hidden_size` is the hidden width of additive scores; 0 for the query's."""
        super().__init__()
        self.kind = kind
        self.key_size = (hidden_size or query_size) if kind == "additive" else query_size
        if kind == "dot":
            if query_size != memory_size:
                raise UsageError(
                    f"dot-product attention needs queries and memory of the same width, "
                    f"not {query_size} and {memory_size}",
                    "make the two equal, or set attention to bilinear",
                )
            return
        self.memory = nn.Linear(memory_size, self.key_size, bias=False)
        if kind == "additive":
            self.query = nn.Linear(query_size, self.key_size)
            self.score = nn.Linear(self.key_size, 1, bias=False)

    def keys(self, memory_BSM: Float[Tensor, "B S M"]) -> Float[Tensor, "B S X"]:
        """Compute the part of the scores that depends only on the memory."""
        return memory_BSM if self.kind == "dot" else self.memory(memory_BSM)

    def forward(
        self,
        queries_BTH: Float[Tensor, "B T H"],
        keys_BSX: Float[Tensor, "B S X"],
        memory_BSM: Float[Tensor, "B S M"],
        mask_BS: Bool[Tensor, "B S"],
    ) -> tuple[Float[Tensor, "B T M"], Float[Tensor, "B T S"]]:
        """Return the context of each query and its weights.

        Weights sum to one over the positions where the mask is True and are 0 elsewhere; a row
        without any such position has a zero context.
        """
        scores_BTS = self.scores(queries_BTH, keys_BSX)
        scores_BTS = scores_BTS.to(torch.promote_types(scores_BTS.dtype, torch.float32))
        # A finite minimum: the softmax of a row of -inf would be NaN.
        lowest = torch.finfo(scores_BTS.dtype).min
        scores_BTS = scores_BTS.masked_fill(~mask_BS[:, None], lowest)
        weights_BTS = scores_BTS.softmax(dim=-1) * mask_BS[:, None]
        return torch.bmm(weights_BTS.to(memory_BSM.dtype), memory_BSM), weights_BTS

    def scores(
        self, queries_BTH: Float[Tensor, "B T H"], keys_BSX: Float[Tensor, "B S X"]
    ) -> Float[Tensor, "B T S"]:
        """Score every position for every query."""
        if self.kind != "additive":
            return torch.bmm(queries_BTH, keys_BSX.transpose(1, 2))
        projected_BTX = self.query(queries_BTH)
        at_once = max(1, MOST_SUMS // keys_BSX.numel())
        parts = [
            self.score(torch.tanh(some_BTX[:, :, None] + keys_BSX[:, None])).squeeze(-1)
            for some_BTX in torch.split(projected_BTX, at_once, dim=1)
        ]
        return torch.cat(parts, dim=1)
