"""One planner per kernel: each returns a plan for some work, or says why its kernel refuses it.

The planner of `cpu` is in `cpu_planner.py`; `planning.py` asks them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from elman.nn.cells import GRUCell, LSTMCell, RNNCell
from elman.nn.kernels import wave
from elman.nn.kernels.cpu_planner import compiled_step, plan_cpu
from elman.nn.kernels.kernel_plan import (
    ONE_LAUNCH,
    STEP_BY_STEP,
    TWO_LEVELS,
    CellFacts,
    KernelPlan,
    Refusal,
    Workload,
)
from elman.nn.kernels.persistent_launch import chip_of, index_of, runs_on
from elman.nn.kernels.persistent_tiling import padded_size, tile

ONE_STEP = "one step of the cell"


def plan_scan(work: Workload) -> KernelPlan | Refusal:
    if not work.cell.is_scan:
        return Refusal("it is for minGRU, minLSTM, SRU and their like", is_obvious=True)
    batch_size, num_steps, _ = work.shape
    is_large = batch_size * work.cell.hidden_size >= work.limits.small_scan
    if work.is_step:
        compiled = compiled_step(work, "scan")
        if isinstance(compiled, KernelPlan):
            return compiled
        variant = "one step"
    elif runs_on(work.device):
        variant = ONE_LAUNCH
    elif num_steps < 4 or (work.device.type == "cpu" and is_large):
        variant = STEP_BY_STEP
    else:
        variant = TWO_LEVELS
    return KernelPlan(kernel="scan", variant=variant)


def plan_triton(work: Workload) -> KernelPlan | Refusal:
    cell = work.cell
    if not runs_on(work.device) or (work.device.type != "cuda" and not work.is_named):
        return Refusal("it needs Triton and a CUDA device of capability 8 or more", True)
    if cell.kind not in (LSTMCell, GRUCell, RNNCell) or cell.has_extras:
        return Refusal("it computes RNN, LSTM and GRU without extras but projections", True)
    if work.is_step and not work.is_named:
        return Refusal("one step has nothing to gain", is_obvious=True)
    dtype = work.autocast_dtype or work.dtype
    if dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return Refusal("it computes in 16 or 32 bits")
    chip, size = chip_of(index_of(work.device)), padded_size(cell.hidden_size)
    for directions in sorted({1, work.directions}, reverse=True):
        tiling = tile(size, work.shape[0], dtype.itemsize, directions, chip)
        if tiling is not None:
            both = ", both directions" if directions > 1 else ""
            return KernelPlan(
                kernel="triton",
                variant=f"persistent, one launch{both}",
                tiling=tiling,
                directions=directions,
            )
    return Refusal("the recurrent matrix and the batch do not fit on the chip")


def plan_torch(work: Workload) -> KernelPlan | Refusal:
    if (name := torch_name(work.cell)) is None:
        return Refusal("torch has no such layer", is_obvious=True)
    if work.device.type not in ("cpu", "cuda"):
        return Refusal(f"it is not tested on {work.device.type}")
    if work.cell.is_projected and work.device.type == "cpu":
        # torch would warn, and loop over the steps as the reference does.
        return Refusal("on a CPU torch has no projections")
    if work.cell.projection_size >= work.cell.hidden_size:
        return Refusal("torch's projections have fewer outputs than the layer has units")
    is_plain_lstm = work.cell.kind is LSTMCell and work.cell.is_plain
    if work.is_step and not work.is_named and not is_plain_lstm:
        return Refusal("its weights would be copied at each step", is_obvious=True)
    kind = "cell" if work.is_step else "layer"
    return KernelPlan(kernel="torch", variant=f"its {name} {kind}")


def torch_name(cell: CellFacts) -> str | None:
    if cell.has_extras:
        return None
    if cell.kind is RNNCell and cell.form in ("tanh", "relu"):
        return f"{cell.form} RNN"
    if cell.kind is LSTMCell:
        return "LSTM"
    return "GRU" if cell.kind is GRUCell and cell.form == "reset_after" else None


def plan_wave(work: Workload) -> KernelPlan | Refusal:
    if not runs_on(work.device) or (work.device.type != "cuda" and not work.is_named):
        return Refusal("it needs Triton and a CUDA device of capability 8 or more", True)
    if not work.cell.is_wave:
        why = "it computes LSTM with mogrifiers of low rank, a capped gate or state dropout"
        return Refusal(why, is_obvious=not work.cell.is_stepwise)
    if work.is_step:
        return _one_step("wave", work)
    if work.is_ragged:
        return Refusal("it reads rows of one length")
    dtype = work.autocast_dtype or work.dtype
    if dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return Refusal("it computes in 16 or 32 bits")
    cell, chip = work.cell, chip_of(index_of(work.device))
    if not wave.fits(work.shape[2], cell.hidden_size, cell.mogrify_rank, dtype.itemsize, chip):
        return Refusal("the matrices of the mogrifiers do not fit on the chip")
    return KernelPlan(kernel="wave", variant="fused launches")


def plan_stepwise(work: Workload) -> KernelPlan | Refusal:
    if not work.cell.is_stepwise:
        return Refusal("it computes LSTM with mogrifiers, a capped gate or state dropout", True)
    if work.is_step:
        return _one_step("stepwise", work)
    fused = ", fused" if runs_on(work.device) else ""
    return KernelPlan(kernel="stepwise", variant=f"step by step{fused}")


def plan_reference(work: Workload) -> KernelPlan:
    variant = ONE_STEP if work.is_step else "loop over the cell"
    return KernelPlan(kernel="reference", variant=variant)


def _one_step(kernel: str, work: Workload) -> KernelPlan | Refusal:
    """For kernels whose `step` is the reference's: only if asked for by name."""
    if work.is_named:
        return KernelPlan(kernel=kernel, variant=ONE_STEP)
    return Refusal("one step has nothing to gain", is_obvious=True)


PLANNERS: dict[str, Callable[[Workload], KernelPlan | Refusal]] = {
    "scan": plan_scan,
    "cpu": plan_cpu,
    "triton": plan_triton,
    "torch": plan_torch,
    "wave": plan_wave,
    "stepwise": plan_stepwise,
    "reference": plan_reference,
}
"""Every kernel, the fastest first."""
MASKING = ("wave", "stepwise", "reference")
"""Kernels that can drop out the state."""
