"""Compiled steps of single layers, for one or a few rows on a CPU, and draws of tokens.

In torch, a step of a few rows costs a dozen calls, and packs the weights anew each time. Here it is
one call of `model_step.py` for a layer and one for an output layer. Models that are decoded as a
whole need neither (`models/decoding.py`). Without numba, for other dtypes than float32, or where
gradients are wanted, kernels use torch.

B rows, I inputs, H hidden units, P outputs, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from elman.nn.cells import Cell
from elman.nn.kernels.loops import draw_tokens, numba
from elman.nn.kernels.model_step import ModelStep, Output
from elman.nn.kernels.planning import KernelPlan, current_limits, step_parts
from elman.nn.shapes import Float, Int
from elman.nn.state import State


def is_stream(rows: Tensor) -> bool:
    """Whether compiled steps can read `rows`, and are faster than torch for this number of them."""
    return len(rows) <= current_limits().few_streams and is_plain(rows)


def is_plain(rows: Tensor) -> bool:
    """Whether compiled code can read `rows`: float32 on a CPU, without gradients or autocast."""
    return (
        rows.dtype == torch.float32
        and rows.device.type == "cpu"
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and numba is not None
    )


def step(
    cell: Cell, inputs_BI: Float[Tensor, "B I"], state: State, plan: KernelPlan
) -> tuple[Float[Tensor, "B P"], State]:
    """One step of one cell."""
    output_BP, (state,) = ModelStep([cell])(inputs_BI, [state], num_parts=plan.num_parts)
    return output_BP, state


def log_softmax(
    weight_VH: Float[Tensor, "V H"],
    int8: Any,
    bias_V: Float[Tensor, "V"],
    hidden_BH: Float[Tensor, "B H"],
) -> Float[Tensor, "B V"]:
    """log softmax(weight h + bias)."""
    step = ModelStep([], output=Output(weight_VH, int8, bias_V))
    return step(hidden_BH, [], num_parts=step_parts(step.weights.step_bytes))[0]


def draw(scores_BV: Float[Tensor, "B V"], draws: list[float]) -> Int[Tensor, "B"]:
    """A token per row from the softmax of its scores, given numbers in (0, 1]; -1 for none."""
    scores = scores_BV.detach().contiguous().numpy()
    return torch.from_numpy(draw_tokens(scores, np.array(draws)))
