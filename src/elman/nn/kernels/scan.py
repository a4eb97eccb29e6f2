"""A scan over time, for cells whose gates do not read the past (`nn/scan_cells.py`).

What is left of the recurrence is h = keep * h + add for every unit on its own. `linear_scan` does
it for all steps: on CUDA in one launch (`scan_loops.py`); on a CPU step by step, since a step is
then one pass over memory and nothing is computed twice; elsewhere, or where steps are small, in two
levels, so that about 2 sqrt(T) calls suffice: every chunk of steps is scanned from zero, all
chunks at once, then the chunks' ends are carried over, then what was carried is added.

The papers scan in log space, because the textbook form divides by a product of gates that soon
underflows. This scan does not divide, so underflow is harmless, states may be negative, and errors
are smaller than those of sums of logarithms (`elman bench kernels` shows both). The gradient of a
scan is a scan back to front, so memory is linear in T and any derivative exists.

B batch, T time steps, I inputs, H hidden units.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from elman.nn.cells import Cell
from elman.nn.kernels import reference, stream
from elman.nn.kernels.persistent_launch import on_device
from elman.nn.kernels.planning import (
    COMPILED_STEP,
    ONE_LAUNCH,
    STEP_BY_STEP,
    TWO_LEVELS,
    KernelPlan,
)
from elman.nn.scan_cells import ScanCell
from elman.nn.shapes import Float, Int
from elman.nn.state import State


def run(
    cell: Cell,
    inputs_BTI: Float[Tensor, "B T I"],
    state: State,
    lengths_B: Int[Tensor, "B"] | None,
    recurrent_weight: Float[Tensor, "G P"],
    plan: KernelPlan,
) -> tuple[Float[Tensor, "B T P"], State]:
    """All coefficients in one product, then the scan."""
    assert isinstance(cell, ScanCell)
    h_BH = state.tensor("h")
    projected_TBG = cell.project(inputs_BTI.transpose(0, 1))
    # The coefficients' products over time need more bits than autocast's.
    wide = torch.promote_types(projected_TBG.dtype, h_BH.dtype)
    projected_TBG, rest = cell.look_back(projected_TBG.to(wide), state, lengths_B)
    keep_TBH, add_TBH = cell.coefficients(projected_TBG)
    if lengths_B is not None:
        # Beyond a row's end its state does not change, so that the last step has all final states.
        time_T1 = torch.arange(len(keep_TBH), device=h_BH.device).unsqueeze(1)
        real_TB1 = (time_T1 < lengths_B.to(h_BH.device)).unsqueeze(2)
        keep_TBH, add_TBH = torch.where(real_TB1, keep_TBH, 1), torch.where(real_TB1, add_TBH, 0)
    states_TBH = linear_scan(keep_TBH, add_TBH, h_BH, plan.variant)
    outputs_TBH = cell.read(projected_TBG, states_TBH)
    if lengths_B is not None:
        outputs_TBH = torch.where(real_TB1, outputs_TBH, 0)
    return outputs_TBH.transpose(0, 1), State({"h": states_TBH[-1].to(h_BH.dtype), **rest})


def step(
    cell: Cell, inputs_BI: Float[Tensor, "B I"], state: State, plan: KernelPlan
) -> tuple[Float[Tensor, "B P"], State]:
    """One step: compiled, or by the cell's equation."""
    if plan.variant == COMPILED_STEP:
        return stream.step(cell, inputs_BI, state, plan)
    return reference.step(cell, inputs_BI, state)


def linear_scan(
    keep_TBH: Float[Tensor, "T B H"],
    add_TBH: Float[Tensor, "T B H"],
    initial_BH: Float[Tensor, "B H"],
    variant: str,
) -> Float[Tensor, "T B H"]:
    """h_t = keep_t * h_{t-1} + add_t for t = 1 to T, from h_0 = `initial_BH`."""
    result: Tensor = _LinearScan.apply(keep_TBH, add_TBH, initial_BH, variant)  # type: ignore[no-untyped-call]
    return result


class _LinearScan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, keep_TBH: Tensor, add_TBH: Tensor, initial_BH: Tensor, variant: str
    ) -> Tensor:
        scan = {ONE_LAUNCH: _launched, STEP_BY_STEP: _steps, TWO_LEVELS: _two_levels}[variant]
        states_TBH = scan(keep_TBH, add_TBH, initial_BH)
        ctx.save_for_backward(keep_TBH, states_TBH, initial_BH)
        ctx.variant = variant
        return states_TBH

    @staticmethod
    def backward(ctx: Any, gradient_TBH: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        # dL/dh_t = its own gradient + keep_{t+1} * dL/dh_{t+1}: the same line, back to front.
        keep_TBH, states_TBH, initial_BH = ctx.saved_tensors
        later_TBH = torch.cat([keep_TBH[1:], torch.zeros_like(keep_TBH[:1])]).flip(0)
        zeros_BH = torch.zeros_like(initial_BH)
        to_add_TBH = linear_scan(later_TBH, gradient_TBH.flip(0), zeros_BH, ctx.variant).flip(0)
        before_TBH = torch.cat([initial_BH.unsqueeze(0).to(states_TBH), states_TBH[:-1]])
        return to_add_TBH * before_TBH, to_add_TBH, keep_TBH[0] * to_add_TBH[0], None


def _two_levels(keep_TBH: Tensor, add_TBH: Tensor, initial_BH: Tensor) -> Tensor:
    """Scan chunks of sqrt(T) steps side by side, then carry the state from chunk to chunk."""
    num_steps = len(keep_TBH)
    length = math.isqrt(num_steps)
    num_chunks = num_steps // length
    whole = num_chunks * length
    # (length, chunks, B, H): step s of every chunk side by side.
    shape = (num_chunks, length, *initial_BH.shape)
    keep = keep_TBH[:whole].reshape(shape).transpose(0, 1)
    add = add_TBH[:whole].reshape(shape).transpose(0, 1)
    local = _steps(keep, add, torch.zeros_like(add[0]))
    kept = torch.cumprod(keep, 0)
    ends = _steps(kept[-1], local[-1], initial_BH)
    before = torch.cat([initial_BH.unsqueeze(0).to(ends), ends[:-1]])
    states = torch.addcmul(local, kept, before).transpose(0, 1).flatten(0, 1)
    if whole == num_steps:
        return states
    return torch.cat([states, _steps(keep_TBH[whole:], add_TBH[whole:], states[-1])])


def _launched(keep_TBH: Tensor, add_TBH: Tensor, initial_BH: Tensor) -> Tensor:
    from elman.nn.kernels.scan_loops import scan

    add_TBH = add_TBH.contiguous()
    states_TBH = torch.empty_like(add_TBH)
    width, units = initial_BH.numel(), 64
    with on_device(add_TBH.device.index):
        scan[(-(-width // units),)](
            keep_TBH.contiguous(),
            add_TBH,
            initial_BH.to(add_TBH).contiguous(),
            states_TBH,
            len(keep_TBH),
            width,
            STEPS=32,
            UNITS=units,
        )
    return states_TBH


def _steps(keep: Tensor, add: Tensor, state: Tensor) -> Tensor:
    """One step after the other, along the first axis."""
    states = torch.empty_like(add, memory_format=torch.contiguous_format)
    for time in range(len(keep)):
        state = torch.addcmul(add[time], keep[time], state, out=states[time])
    return states
