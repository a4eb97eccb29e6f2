"""The one function that decides what computes a cell.

`plan` looks at the cell, the device, the dtype, the shape and the purpose, and returns a
`KernelPlan`: the kernel, its variant, and why. It asks one planner per kernel (`planners.py`), the
fastest kernel first; a planner returns a plan or a refusal. A kernel asked for by name is used
whatever the size, or a `UsageError` says why it cannot be. With `auto`, size limits apply too
(`limits.py`). A kernel executes its plan or raises; none hands its work on to another. What was
executed is recorded in `plan_record.py`. Other modules import all that concerns plans from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial

import torch

from elman.base.errors import UsageError, nearest
from elman.base.tables import is_outside
from elman.nn.cells import Cell, GRUCell, LSTMCell, RNNCell
from elman.nn.kernels import blocks, products, stepwise, timing, wave
from elman.nn.kernels.cpu_planner import UNITS_APART, padded_rows, plan_cpu, step_parts
from elman.nn.kernels.kernel_plan import (
    COMPILED_STEP,
    ONE_LAUNCH,
    PACKED_MODEL,
    PRODUCTS,
    STEP_BY_STEP,
    TWO_LEVELS,
    WHOLE_MODEL,
    CellFacts,
    KernelPlan,
    ModelWeights,
    Purpose,
    Refusal,
    Workload,
)
from elman.nn.kernels.limits import KernelLimits, current_limits, kernel_limits
from elman.nn.kernels.planners import (
    MASKING,
    PLANNERS,
    plan_reference,
    plan_torch,
    torch_name,
)
from elman.nn.kernels.products import BFLOAT16
from elman.nn.scan_cells import ScanCell

__all__ = [
    "COMPILED_STEP",
    "ONE_LAUNCH",
    "PACKED_MODEL",
    "PRODUCTS",
    "STEP_BY_STEP",
    "TWO_LEVELS",
    "UNITS_APART",
    "WHOLE_MODEL",
    "KernelLimits",
    "KernelPlan",
    "ModelWeights",
    "Purpose",
    "current_limits",
    "halves_are_faster",
    "kernel_limits",
    "padded_rows",
    "plan",
    "restore_products",
    "step_parts",
    "torch_has",
]


def plan(
    cell: Cell,
    *,
    device: torch.device,
    dtype: torch.dtype,
    shape: tuple[int, int, int],
    purpose: Purpose,
    kernel: str = "auto",
    state_dtype: torch.dtype | None = None,
    directions: int = 1,
    limits: KernelLimits | None = None,
    model: ModelWeights | None = None,
    masked: bool = False,
    ragged: bool = False,
) -> KernelPlan:
    """Decide what computes `cell` for inputs of `shape` (batch, steps, inputs) and `dtype`.

    `kernel` is a name, or "auto". `directions` layers of opposite directions are to be computed; a
    plan for fewer is for each of them alone. `model` is given if a step can be done for the whole
    model in one call. `masked` asks for a kernel that can drop out the state, `ragged` for one that
    reads rows of different lengths.
    """
    if is_outside(kernel):
        return KernelPlan(kernel=kernel, variant="outside kernel", reason="asked for by name")
    limits = limits or current_limits()
    kind = device.type
    is_autocast = kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind)
    work = Workload(
        _facts(cell),
        device,
        dtype,
        torch.get_autocast_dtype(kind) if is_autocast else None,
        dtype if state_dtype is None else state_dtype,
        shape,
        purpose in (Purpose.ONE_STREAM, Purpose.MANY_STREAMS),
        torch.is_grad_enabled(),
        directions,
        limits,
        limits.num_threads or torch.get_num_threads(),
        kernel,
        model,
        masked,
        ragged,
    )
    return _decide(work)


def halves_are_faster(cell: Cell, shape: tuple[int, int, int]) -> bool:
    """Whether training a cell on this CPU is faster with products in bfloat16: it is large enough
    for the compiled loop, and a step of the layer was timed to be."""
    if cell.bias.device.type != "cpu" or blocks.problem():
        return False
    planned = partial(
        plan,
        cell,
        device=cell.bias.device,
        dtype=torch.float32,
        shape=shape,
        purpose=Purpose.TRAINING,
    )
    with torch.enable_grad(), torch.autocast("cpu", torch.bfloat16):
        found = planned()
        if found.products != BFLOAT16:
            return False
        with torch.autocast("cpu", enabled=False):
            wide = planned()
    sizes = (*shape, cell.hidden_size)
    layer = timing.Layer(*sizes, trains=True, num_threads=torch.get_num_threads())
    of = {"float32": timing.Candidate(wide, False), "bfloat16": timing.Candidate(found, True)}
    return timing.fastest(layer, of) == "bfloat16"


def restore_products(chosen: Mapping[str, str]) -> None:
    """Plan with the products that an earlier process chose, where they are there."""
    products.restore(chosen)
    _decide.cache_clear()


def torch_has(cell: Cell) -> bool:
    """Whether torch has a layer that computes this cell."""
    return torch_name(_facts(cell)) is not None


def _facts(cell: Cell) -> CellFacts:
    kind = type(cell)
    has_extras, projection_size, form, mogrify_rank = cell.layer_norm, 0, "", 0
    if isinstance(cell, LSTMCell):
        has_extras = cell.has_extras
        projection_size = 0 if cell.projection_weight is None else cell.output_size
        mogrify_rank = wave.rank_of(cell)
    elif isinstance(cell, GRUCell):
        form = cell.form
    elif isinstance(cell, RNNCell):
        form = cell.nonlinearity
    return CellFacts(
        kind,
        cell.hidden_size,
        cell.bias.dtype,
        form,
        projection_size,
        has_extras,
        stepwise.serves(cell),
        wave.serves(cell),
        mogrify_rank,
        isinstance(cell, ScanCell) and kind.step is ScanCell.step,
        (cell.input_weight.numel() + cell.recurrent_weight.numel()) * (1 if cell.int8 else 4),
    )


@lru_cache(1024)
def _decide(work: Workload) -> KernelPlan:
    if work.is_named and work.kernel not in PLANNERS:
        hint = nearest(work.kernel, ["auto", *PLANNERS])
        raise UsageError(f"there is no kernel called '{work.kernel}'", hint)
    if work.shape[0] == 0:
        return replace(plan_reference(work), reason="no rows: nothing to compute")
    if work.is_named:
        found = _asked(work.kernel, work)
        if isinstance(found, Refusal):
            raise UsageError(
                f"the kernel '{work.kernel}' cannot compute this {work.cell.kind.__name__} on "
                f"{work.device.type}: {found.why}",
                "set kernel to auto",
            )
        return replace(found, reason="asked for by name")
    refusals: list[str] = []
    for name in PLANNERS:
        found = _asked(name, work)
        if isinstance(found, KernelPlan):
            found = _timed(found, work)
            reason = "; ".join(refusals) or "the fastest for this cell and device"
            return replace(found, reason=reason)
        if not found.is_obvious:
            refusals.append(f"not {name}: {found.why}")
    raise AssertionError("the last planner refuses nothing")


def _timed(found: KernelPlan, work: Workload) -> KernelPlan:
    """The fastest way to compute a large LSTM layer by compiled loops or by torch: timed."""
    limits, size = work.limits, work.cell.hidden_size
    batch_size, num_steps, input_size = work.shape
    num_products = batch_size * num_steps * 4 * size * (size + input_size)
    is_layer = found.kernel == "cpu" and work.cell.kind is LSTMCell and not work.is_step
    is_settled = limits.row_groups is not None or found.directions == 2
    # Scoring comes in many shapes, each of which is timed: only where it takes milliseconds.
    least = limits.timed_work * (1 if work.has_gradients else 10)
    if not is_layer or is_settled or num_products < least:
        return found
    half = work.autocast_dtype is not None
    if half:
        groups = [*(1 << i for i in range(work.num_threads.bit_length())), work.num_threads]
        others = [replace(limits, row_groups=number) for number in groups]
    else:
        by_rows = replace(limits, few_rows_per_part=0, large_bytes=1 << 62)
        others = [by_rows, replace(limits, few_rows_per_part=batch_size)]
    ways = [found, *(plan_cpu(work._replace(limits=other)) for other in others)]
    if not (half and work.has_gradients):  # torch would also round cell states and gates
        ways.append(plan_torch(work))
    plans = {way.describe(): way for way in ways if isinstance(way, KernelPlan)}
    sizes = (*work.shape, size)
    layer = timing.Layer(*sizes, trains=work.has_gradients, num_threads=work.num_threads)
    candidates = {name: timing.Candidate(way, half) for name, way in plans.items()}
    return plans[timing.fastest(layer, candidates)]


def _asked(name: str, work: Workload) -> KernelPlan | Refusal:
    found = PLANNERS[name](work)
    if isinstance(found, KernelPlan) and work.is_masked and name not in MASKING:
        return Refusal("it does not drop out the state")
    return found
