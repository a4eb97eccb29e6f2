"""Combine a word's vectors from several layers into the one vector that a task reads.

    mix      gamma * sum_j s_j h_j, s a softmax of learnt weights, gamma learnt too: ELMo
             (Peters and others, 2018, equation 1)
    top      gamma times the highest layer alone, as in TagLM (Peters and others, 2017)
    concat   gamma times all layers side by side

`top` and `concat` are baselines for `mix`: one has no layers to choose from, the other leaves the
choice to the network above, at a multiple of the width. The scale gamma is learnt in each, so that
they differ in nothing else.

L layers, B batch, T time steps, D numbers per word and layer.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elman.nn.shapes import Float

Layers = Literal["mix", "top", "concat"]


class LayerMix(nn.Module):
    def __init__(
        self, num_layers: int, size: int, kind: Layers, *, layer_norm: bool, scale: float = 1.0
    ) -> None:
        super().__init__()
        self.kind = kind
        self.layer_norm = layer_norm
        self.output_size = size * num_layers if kind == "concat" else size
        # Equal weights at first.
        self.weights_L = nn.Parameter(torch.zeros(num_layers)) if kind == "mix" else None
        self.scale = nn.Parameter(torch.tensor(scale))

    def forward(self, layers_LBTD: Float[Tensor, "L B T D"]) -> Float[Tensor, "B T P"]:
        """Return the vector of each word; zeros stay zeros.

        With `layer_norm` every vector is first normalised to mean 0 and variance 1, so that a
        layer's weight does not depend on its scale. Each vector is normalised by itself (Ba and
        others, 2016): over a whole batch, as in AllenNLP, a word's vector would depend on the rest
        of the batch.
        """
        if self.kind == "top":
            layers_LBTD = layers_LBTD[-1:]
        if self.layer_norm:
            layers_LBTD = F.layer_norm(layers_LBTD, layers_LBTD.shape[-1:])
        if self.kind == "mix":
            return torch.einsum("l,lbtd->btd", self.shares() * self.scale, layers_LBTD)
        return torch.cat(layers_LBTD.unbind(0), dim=-1) * self.scale

    def shares(self) -> Float[Tensor, "L"]:
        """The weights s of the layers, bottom first; they sum to one. Only for `mix`."""
        assert self.weights_L is not None
        return self.weights_L.softmax(0)
