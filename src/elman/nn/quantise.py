"""Weights of one byte, for generation: a step reads a quarter of the memory.

Each row of a matrix is rounded to multiples, -127 to 127, of its largest entry / 127. Activations
stay float32. The module's own weights take the rounded values, so that everything it computes
(prompts, perplexity) agrees with the int8 steps of decoding.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from elman.base.errors import UsageError
from elman.nn.cells import Cell
from elman.nn.heads.softmax import Softmax

Quantise = Literal["int8"]


class Int8(NamedTuple):
    """A matrix as integers and a scale per row."""

    weights: NDArray[np.int8]
    scales: NDArray[np.float32]


@torch.no_grad()
def quantise(model: nn.Module, kind: str = "int8") -> None:
    """Round the matrices of all recurrent cells and softmax layers of `model`, in place."""
    if kind != "int8":
        raise UsageError(f"weights cannot be quantised to '{kind}'", "use int8")
    for module in model.modules():
        if isinstance(module, Cell):
            module.int8 = (_rounded(module.input_weight), _rounded(module.recurrent_weight))
        elif isinstance(module, Softmax):
            module.int8 = _rounded(module.weight)


def _rounded(weight: Tensor) -> Int8:
    """`weight` as an int8 matrix; `weight` itself takes the rounded values."""
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        raise UsageError(
            "only float32 models on the CPU can be quantised", "add --device cpu, or leave it out"
        )
    largest = weight.abs().amax(dim=1) if weight.numel() else weight.new_zeros(len(weight))
    scales = (largest / 127).clamp(min=torch.finfo(torch.float32).tiny)
    whole = (weight / scales.unsqueeze(1)).round_()
    weight.copy_(whole * scales.unsqueeze(1))
    return Int8(whole.to(torch.int8).numpy(), scales.numpy())
