"""Pooling: one vector for a text from a vector for each step.

    last        the last state of each direction
    mean, max   over all steps, element by element
    attention   a weighted mean, by a softmax of u . tanh(A h_t) (Yang and others, 2016)

Padding never counts.

B batch, T time steps, H hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from elman.nn.kernels import pooling
from elman.nn.shapes import Bool, Float

Pooling = Literal["last", "mean", "max", "attention"]


class Pool(nn.Module):
    """One or several ways of pooling, concatenated."""

    def __init__(self, ways: Sequence[Pooling], size: int, *, bidirectional: bool) -> None:
        super().__init__()
        self.ways = tuple(ways)
        self.bidirectional = bidirectional
        self.output_size = size * len(self.ways)
        self.attention = AttentionPool(size) if "attention" in self.ways else None

    def forward(
        self, hidden_BTH: Float[Tensor, "B T H"], mask_BT: Bool[Tensor, "B T"] | None
    ) -> Float[Tensor, "B P"]:
        """The vectors of the texts; the mask is True for real steps, of which each text has one.
        None: all are real."""
        if mask_BT is None and pooling.serves(hidden_BTH, self.ways):
            return pooling.pooled(hidden_BTH, self.ways)
        parts = []
        for way in self.ways:
            if way == "mean":
                parts.append(_mean(hidden_BTH, mask_BT))
            elif way == "max":
                real_BTH = hidden_BTH
                if mask_BT is not None:
                    real_BTH = hidden_BTH.masked_fill(~mask_BT.unsqueeze(2), -torch.inf)
                parts.append(real_BTH.amax(1))
            elif way == "last":
                parts.append(self._last(hidden_BTH, mask_BT))
            else:
                assert self.attention is not None
                parts.append(self.attention(hidden_BTH, mask_BT)[0])
        return torch.cat(parts, dim=1)

    def _last(self, hidden_BTH: Tensor, mask_BT: Tensor | None) -> Tensor:
        """The output of the last step, and in the backward half that of the first.

        If both directions were merged into one, the last step is all there is.
        """
        if mask_BT is None:
            last_BH = hidden_BTH[:, -1]
        else:
            end_B1H = (mask_BT.sum(1) - 1).view(-1, 1, 1).expand(-1, 1, hidden_BTH.shape[2])
            last_BH = hidden_BTH.gather(1, end_B1H).squeeze(1)
        if not self.bidirectional:
            return last_BH
        half = hidden_BTH.shape[2] // 2
        return torch.cat([last_BH[:, :half], hidden_BTH[:, 0, half:]], dim=1)


def _mean(hidden_BTH: Tensor, mask_BT: Tensor | None) -> Tensor:
    if mask_BT is None:
        return hidden_BTH.mean(1)
    mask_BT1 = mask_BT.unsqueeze(2)
    return (hidden_BTH * mask_BT1).sum(1) / mask_BT1.sum(1)


class AttentionPool(nn.Module):
    """A weighted mean, with learned weights."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.query = nn.Linear(size, size)
        self.score = nn.Linear(size, 1, bias=False)

    def forward(
        self, hidden_BTH: Float[Tensor, "B T H"], mask_BT: Bool[Tensor, "B T"] | None
    ) -> tuple[Float[Tensor, "B H"], Float[Tensor, "B T"]]:
        """The weighted means and the weights, which sum to 1 and are 0 for padding."""
        scores_BT = self.score(torch.tanh(self.query(hidden_BTH))).squeeze(2)
        if mask_BT is not None:
            scores_BT = scores_BT.masked_fill(~mask_BT, -torch.inf)
        weights_BT = scores_BT.softmax(1)
        return (weights_BT.unsqueeze(2) * hidden_BTH).sum(1), weights_BT
