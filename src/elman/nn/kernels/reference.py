"""A loop over the cell: any cell, any device, twice differentiable. The other kernels are tested
against it.

B batch, T time steps, I inputs, P outputs, G gates times hidden units.
"""

from __future__ import annotations

import torch
from torch import Tensor

from elman.nn.cells import Cell
from elman.nn.kernels.planning import KernelPlan
from elman.nn.shapes import Float, Int
from elman.nn.state import State


def run(
    cell: Cell,
    inputs_BTI: Float[Tensor, "B T I"],
    state: State,
    lengths_B: Int[Tensor, "B"] | None,
    recurrent_weight: Float[Tensor, "G P"],
    plan: KernelPlan | None = None,
) -> tuple[Float[Tensor, "B T P"], State]:
    """Compute W x + b for all steps in one product, then one step after the other."""
    projected_TBG = cell.project(inputs_BTI.transpose(0, 1))
    if lengths_B is not None:
        lengths_B = lengths_B.to(inputs_BTI.device)
    outputs = []
    for time, projected_BG in enumerate(projected_TBG):
        output_BP, new_state = cell.step(projected_BG, state, recurrent_weight)
        if lengths_B is None:
            state = new_state
        else:
            real_B1 = (time < lengths_B).unsqueeze(1)
            output_BP = torch.where(real_B1, output_BP, 0)
            state = _where(real_B1, new_state, state)
        outputs.append(output_BP)
    return torch.stack(outputs).transpose(0, 1), state


def step(
    cell: Cell,
    inputs_BI: Float[Tensor, "B I"],
    state: State,
    plan: KernelPlan | None = None,
) -> tuple[Float[Tensor, "B P"], State]:
    """One step of the cell's equations."""
    output_BP, state = cell(inputs_BI, state)
    return output_BP, state


def _where(condition_B1: Tensor, new: State, old: State) -> State:
    return State({key: torch.where(condition_B1, new.tensor(key), old.tensor(key)) for key in new})
