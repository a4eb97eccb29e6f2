"""The one function that decides what computes a cell.

`plan` looks at the cell, the device, the dtype, the shape and the purpose, and returns a
`KernelPlan`: the kernel, its variant, and why. It asks one planner per kernel (`_scan`, `_cpu`,
`_triton`, `_torch`, `_wave`, `_stepwise`, `_reference`), the fastest kernel first; a planner returns a plan
or a refusal. A kernel asked for by name is used whatever the size, or a `UsageError` says why it
cannot be. With `auto`, size limits apply too (`KernelLimits`). A kernel executes its plan or
raises; none hands its work on to another. What was executed is recorded in `plan_record.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from elman.base.errors import UsageError, nearest
from elman.base.tables import is_outside
from elman.nn.cells import Cell, GRUCell, LSTMCell, RNNCell
from elman.nn.kernels import blocks, mkl, products, stepwise, timing, wave
from elman.nn.kernels.loops import numba
from elman.nn.kernels.persistent_launch import chip_of, index_of, runs_on
from elman.nn.kernels.persistent_tiling import Tiling, padded_size, tile
from elman.nn.kernels.products import BFLOAT16, MKL, ONEDNN, fastest
from elman.nn.scan_cells import MinGRUCell, MinLSTMCell, ScanCell, SRUCell

UNITS_APART = 16
"""Threads divide units in multiples of this, so that no two write to the same cache line."""


class Purpose(Enum):
    """What a cell is computed for."""

    TRAINING = "training"
    """Whole sequences, with gradients."""
    SCORING = "scoring"
    """Whole sequences, without gradients."""
    ONE_STREAM = "one stream"
    """One step of one row: decoding."""
    MANY_STREAMS = "many streams"
    """One step of several rows."""


# Compared and hashed by identity: it is part of a cache key at every call.
@dataclass(frozen=True, kw_only=True, eq=False)
class KernelLimits:
    """The sizes at which another kernel, or another variant, becomes faster (measured)."""

    smallest_work: int = 100_000_000
    """Multiplications of an LSTM's forward pass below which torch's layer is as fast as the
    compiled loops. (torch has no fused GRU on a CPU.)"""
    fewest_steps: int = 2048
    """Steps times rows below which `smallest_work` is four times as large in float32: fewer steps
    share the cost of packing the matrices."""
    fewest_rows: int = 4
    """Rows of a batch that are worth a thread."""
    few_rows_per_part: int = 10
    """Rows per thread up to which reading an LSTM's recurrent matrix takes longer than multiplying
    by it: the threads then divide the units, so that each reads its part of the matrix. In float32;
    in bfloat16 `_grid` decides."""
    timed_work: int = 100_000_000
    """Multiplications of an LSTM's forward pass from which ways to divide it, and torch's layer,
    are timed (`timing.py`) in training; in scoring, from ten times as many."""
    row_groups: int | None = None
    """Groups of rows in an LSTM's loop in bfloat16; the threads of a group divide the units. None
    for what a model of the time finds best (`_grid`)."""
    large_bytes: int = 1 << 24
    """Bytes of a recurrent matrix above which the threads divide the units at any batch size.
    In float32, as above."""
    cache_bytes: int = 3 << 19
    """Bytes of W and U together up to which they stay in a core's cache from step to step. Products
    are then computed inside the time loop; else over all steps at once."""
    small_scan: int = 4096
    """Numbers in a step below which, on a CPU, a scan in two levels is faster than one by steps."""
    few_streams: int = 4
    """Rows up to which a decoding step goes through the weights row by row, in compiled code."""
    shared_bytes: int = 3 << 19
    """Bytes of weights, read in a decoding step, that are worth waking another thread for."""
    packed_bytes: int = 1 << 28
    """Bytes of the largest model whose weights are packed for decoding many rows (two copies)."""
    table_ratio: int = 4
    """In decoding, W x + b of every word may take this many times the memory of W."""
    num_threads: int | None = None
    """Threads to use; None for as many as torch has."""


_DEFAULT_LIMITS = KernelLimits()
_limits: ContextVar[KernelLimits] = ContextVar("kernel_limits", default=_DEFAULT_LIMITS)


@contextmanager
def kernel_limits(**changes: Any) -> Iterator[KernelLimits]:
    """Plan with other limits inside a `with` block, e.g. `kernel_limits(smallest_work=0)`."""
    token = _limits.set(replace(_limits.get(), **changes))
    try:
        yield _limits.get()
    finally:
        _limits.reset(token)


def current_limits() -> KernelLimits:
    """The limits of the innermost `kernel_limits` block, or the measured ones."""
    return _limits.get()


@dataclass(frozen=True, kw_only=True)
class KernelPlan:
    """Which kernel computes a cell, and how."""

    kernel: str
    """Its name in the table of kernels."""
    variant: str
    """How it computes, in words."""
    reason: str = ""
    """Why this one."""
    num_parts: int = 1
    """On a CPU: parts of the batch, or of the units; at most one per thread."""
    num_threads: int = 1
    """cpu: threads for products over all steps, in bfloat16."""
    by_units: bool = False
    """cpu: whether threads divide the units instead of the rows, or besides them."""
    row_groups: int = 1
    """cpu: groups of rows in a layer's loop, each computed by num_parts / row_groups threads."""
    in_cache: bool = False
    """cpu: whether W x and the matrices' gradients are computed inside the time loop."""
    products: str = ""
    """cpu: what multiplies inside the loop."""
    tiling: Tiling | None = None
    """triton: how the layer is divided over the GPU."""
    directions: int = 1
    """How many layers of opposite directions run at once."""

    def describe(self) -> str:
        """For people: "cpu: compiled loop, rows over 2 threads"."""
        return f"{self.kernel}: {self.variant}"


@dataclass(frozen=True)
class _Refusal:
    """Why a kernel cannot compute something, or should not."""

    why: str
    is_obvious: bool = False
    """Whether it never computes such a cell, or on such a device: no reason to mention it."""


class _Facts(NamedTuple):
    """What matters about a cell."""

    kind: type[Cell]
    hidden_size: int
    dtype: torch.dtype
    form: str
    """The RNN's nonlinearity, or the GRU's form."""
    projection_size: int
    """0: the cell has no projection."""
    has_extras: bool
    """Whether it has layer normalisation, peepholes, clipping, a capped gate or mogrifiers."""
    is_stepwise: bool
    """Whether `stepwise.py` computes it."""
    is_wave: bool
    """Whether `wave.py` computes it."""
    is_scan: bool
    """Whether it is a `ScanCell` that has kept the common `step`."""
    step_bytes: int
    """Bytes of weights that one step reads."""

    @property
    def is_projected(self) -> bool:
        return self.projection_size > 0

    @property
    def is_plain(self) -> bool:
        return not (self.is_projected or self.has_extras)


class ModelWeights(NamedTuple):
    """The weights of a model whose step can be one compiled call (`model_step.py`)."""

    step_bytes: int
    """Bytes that one step reads."""
    float_bytes: int
    """The same as float32."""

    @property
    def is_int8(self) -> bool:
        """Whether they are read as int8."""
        return self.step_bytes < self.float_bytes


class _Work(NamedTuple):
    """All that a plan depends on; plans are cached by it."""

    cell: _Facts
    device: torch.device
    dtype: torch.dtype
    """The dtype of the inputs."""
    autocast_dtype: torch.dtype | None
    """What autocast computes in; None if it is off."""
    state_dtype: torch.dtype
    shape: tuple[int, int, int]
    """Rows, steps, inputs."""
    is_step: bool
    has_gradients: bool
    directions: int
    limits: KernelLimits
    num_threads: int
    kernel: str
    model: ModelWeights | None
    is_masked: bool
    """Whether h is multiplied by a mask before each step."""
    is_ragged: bool
    """Whether rows have lengths of their own."""

    @property
    def is_named(self) -> bool:
        return self.kernel != "auto"

    @property
    def is_float32(self) -> bool:
        return self.cell.dtype == self.dtype == self.state_dtype == torch.float32


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
    model in one call. `masked` asks for a kernel that can drop out the state, `ragged` for one that reads
    rows of different lengths.
    """
    if is_outside(kernel):
        return KernelPlan(kernel=kernel, variant="outside kernel", reason="asked for by name")
    limits = limits or current_limits()
    kind = device.type
    is_autocast = kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind)
    work = _Work(
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
    with torch.enable_grad(), torch.autocast("cpu", torch.bfloat16):
        found = plan(
            cell,
            device=cell.bias.device,
            dtype=torch.float32,
            shape=shape,
            purpose=Purpose.TRAINING,
        )
        if found.products != BFLOAT16:
            return False
        with torch.autocast("cpu", enabled=False):
            wide = plan(
                cell,
                device=cell.bias.device,
                dtype=torch.float32,
                shape=shape,
                purpose=Purpose.TRAINING,
            )
    sizes = (*shape, cell.hidden_size)
    layer = timing.Layer(*sizes, trains=True, num_threads=torch.get_num_threads())
    of = {"float32": timing.Candidate(wide, False), "bfloat16": timing.Candidate(found, True)}
    return timing.fastest(layer, of) == "bfloat16"


def restore_products(chosen: Mapping[str, str]) -> None:
    """Plan with the products that an earlier process chose, where they are there."""
    products.restore(chosen)
    _decide.cache_clear()


def _facts(cell: Cell) -> _Facts:
    kind = type(cell)
    has_extras, projection_size, form = cell.layer_norm, 0, ""
    if isinstance(cell, LSTMCell):
        has_extras = cell.has_extras
        projection_size = 0 if cell.projection_weight is None else cell.output_size
    elif isinstance(cell, GRUCell):
        form = cell.form
    elif isinstance(cell, RNNCell):
        form = cell.nonlinearity
    return _Facts(
        kind,
        cell.hidden_size,
        cell.bias.dtype,
        form,
        projection_size,
        has_extras,
        stepwise.serves(cell),
        wave.serves(cell),
        isinstance(cell, ScanCell) and kind.step is ScanCell.step,
        (cell.input_weight.numel() + cell.recurrent_weight.numel()) * (1 if cell.int8 else 4),
    )


@lru_cache(1024)
def _decide(work: _Work) -> KernelPlan:
    if work.is_named and work.kernel not in _PLANNERS:
        hint = nearest(work.kernel, ["auto", *_PLANNERS])
        raise UsageError(f"there is no kernel called '{work.kernel}'", hint)
    if work.shape[0] == 0:
        return replace(_reference(work), reason="no rows: nothing to compute")
    if work.is_named:
        found = _asked(work.kernel, work)
        if isinstance(found, _Refusal):
            raise UsageError(
                f"the kernel '{work.kernel}' cannot compute this {work.cell.kind.__name__} on "
                f"{work.device.type}: {found.why}",
                "set kernel to auto",
            )
        return replace(found, reason="asked for by name")
    refusals: list[str] = []
    for name in _PLANNERS:
        found = _asked(name, work)
        if isinstance(found, KernelPlan):
            found = _timed(found, work)
            reason = "; ".join(refusals) or "the fastest for this cell and device"
            return replace(found, reason=reason)
        if not found.is_obvious:
            refusals.append(f"not {name}: {found.why}")
    raise AssertionError("the last planner refuses nothing")


def _timed(found: KernelPlan, work: _Work) -> KernelPlan:
    """The fastest way to compute a large LSTM layer by compiled loops or by torch: timed."""
    limits, (batch_size, num_steps, input_size), size = (
        work.limits,
        work.shape,
        work.cell.hidden_size,
    )
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
    ways = [found, *(_cpu(work._replace(limits=other)) for other in others)]
    if not (half and work.has_gradients):  # torch would also round cell states and gates
        ways.append(_torch(work))
    plans = {way.describe(): way for way in ways if isinstance(way, KernelPlan)}
    sizes = (*work.shape, size)
    layer = timing.Layer(*sizes, trains=work.has_gradients, num_threads=work.num_threads)
    candidates = {name: timing.Candidate(way, half) for name, way in plans.items()}
    return plans[timing.fastest(layer, candidates)]


def _asked(name: str, work: _Work) -> KernelPlan | _Refusal:
    found = _PLANNERS[name](work)
    if isinstance(found, KernelPlan) and work.is_masked and name not in MASKING:
        return _Refusal("it does not drop out the state")
    return found


PRODUCTS = {MKL: "by MKL", ONEDNN: "by oneDNN", BFLOAT16: "in bfloat16 by oneDNN"}
COMPILED_STEP, WHOLE_MODEL = "compiled step", "whole model in one call"
PACKED_MODEL = "whole model in one call, packed weights"
ONE_LAUNCH, STEP_BY_STEP, TWO_LEVELS = "one launch", "step by step", "two levels"


def _scan(work: _Work) -> KernelPlan | _Refusal:
    if not work.cell.is_scan:
        return _Refusal("it is for minGRU, minLSTM, SRU and their like", is_obvious=True)
    batch_size, num_steps, _ = work.shape
    is_large = batch_size * work.cell.hidden_size >= work.limits.small_scan
    if work.is_step:
        compiled = _compiled_step(work, "scan")
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


def _cpu(work: _Work) -> KernelPlan | _Refusal:
    cell, limits, num_threads = work.cell, work.limits, work.num_threads
    if work.device.type != "cpu":
        return _Refusal("it runs on a CPU", is_obvious=True)
    if cell.kind not in (LSTMCell, GRUCell) or not cell.is_plain:
        return _Refusal("it computes LSTM and GRU without extras", is_obvious=True)
    if work.cell.dtype != torch.float32 or work.state_dtype != torch.float32:
        return _Refusal("it computes in float32 only")
    is_half = work.autocast_dtype == torch.bfloat16 and cell.kind is LSTMCell
    if work.autocast_dtype is not None:
        if not is_half:
            return _Refusal("it follows autocast to bfloat16 for LSTM only")
        if problem := blocks.problem():
            return _Refusal(problem)
    elif work.dtype != torch.float32:
        return _Refusal("it computes in float32 only")
    if work.is_step and not is_half:
        found = _compiled_step(work, "cpu")
        if isinstance(found, KernelPlan) or not work.is_named:
            return found
    if problem := mkl.problem():
        return _Refusal(problem)
    if work.directions == 2 and (both := _both_directions(work)) is not None:
        return both
    if not work.is_named and _is_small(work):
        return _Refusal("too little work for compiled loops to gain from")
    batch_size, _, input_size = work.shape
    is_lstm, size = cell.kind is LSTMCell, cell.hidden_size
    per_unit = 4 * (2 if is_half else 4)
    recurrent_bytes, input_bytes = per_unit * size**2, per_unit * size * input_size
    in_cache = is_lstm and not is_half and recurrent_bytes + input_bytes <= limits.cache_bytes
    num_parts = max(1, min(num_threads, batch_size // limits.fewest_rows))
    few_rows = batch_size <= limits.few_rows_per_part * num_parts
    stays = recurrent_bytes + input_bytes <= limits.cache_bytes
    by_units = is_lstm and not stays and num_threads > 1
    by_units = by_units and (few_rows or recurrent_bytes > limits.large_bytes)
    if is_half:
        row_groups, unit_groups = _grid(work)
        num_parts, by_units = row_groups * unit_groups, unit_groups > 1
    elif by_units:
        row_groups, num_parts = 1, min(num_threads, -(-size // UNITS_APART))
    else:
        row_groups = num_parts
    divided = "units" if by_units else "rows"
    over = f"{divided} over {num_parts} threads" if num_parts > 1 else "one thread"
    if by_units and row_groups > 1:
        over = f"{row_groups} groups of rows by {unit_groups} of units over {num_parts} threads"
    rows = -(-batch_size // row_groups)
    num_gates = 4 if is_lstm else 3
    product = BFLOAT16 if is_half else fastest(rows, size, num_gates * size)
    return KernelPlan(
        kernel="cpu",
        variant=f"compiled loop, {over}, products {PRODUCTS[product]}",
        products=product,
        num_parts=num_parts,
        num_threads=num_threads,
        by_units=by_units,
        row_groups=row_groups,
        in_cache=in_cache,
    )


class _Pace(NamedTuple):
    """What a core does in a nanosecond, roughly, as far as it decides how work is divided."""

    multiplications: float
    """In bfloat16, with the matrix in the core's cache."""
    bytes_read: float
    """From beyond the core's cache, or from another core."""
    row_block: int
    """Rows that are multiplied at once: fewer take as long."""
    waiting: float
    """Nanoseconds for threads to meet."""
    fewest_threads: int
    """Fewer divide the rows as long as each has a block of them, whatever the times above are."""


WITH_TILES = _Pace(650.0, 12.0, 16, 1000.0, 3)
WITHOUT_TILES = _Pace(100.0, 100.0, 1, 5000.0, 1)
"""Measured with AMX on a 16-core Xeon, and with AVX-512 on an EPYC (Zen 4)."""
UNIT_NANOSECONDS = 3.0
"""To compute the gates of one unit of one row."""


def _grid(work: _Work) -> tuple[int, int]:
    """Groups of rows and of units into which a loop in bfloat16 divides an LSTM: those with the
    shortest time per step by a model.

    More groups of rows: more threads read the same part of the matrix, from memory if it does not
    stay in a core's cache. More groups of units: more threads wait for each other and read what
    the others computed.
    """
    limits, (batch_size, _, _) = work.limits, work.shape
    size, pace = work.cell.hidden_size, WITH_TILES if blocks.has_tiles() else WITHOUT_TILES
    most_rows = max(1, min(work.num_threads, batch_size // limits.fewest_rows))
    most_units = -(-size // UNITS_APART)

    def nanoseconds(grid: tuple[int, int]) -> float:
        row_groups, unit_groups = grid
        rows = -(-batch_size // row_groups)
        units = min(size, -(-most_units // unit_groups) * UNITS_APART)
        multiplied = -(-rows // pace.row_block) * pace.row_block * units * 4 * size
        part_bytes = 8 * size * units
        read = 0.0 if part_bytes <= limits.cache_bytes else part_bytes
        waiting = 0.0
        if unit_groups > 1:
            # h forward, the gradients of the gates backward: the mean.
            read += rows * 5 * size * (unit_groups - 1) / unit_groups
            waiting = pace.waiting
        computed = multiplied / pace.multiplications + rows * units * UNIT_NANOSECONDS
        return computed + read / pace.bytes_read + waiting

    asked = limits.row_groups
    few_threads = work.num_threads < pace.fewest_threads
    if asked is None and few_threads and batch_size >= work.num_threads * pace.row_block:
        return most_rows, 1
    choices = range(1, most_rows + 1) if asked is None else [min(asked, most_rows)]
    grids = [
        (row_groups, unit_groups)
        for row_groups in choices
        for unit_groups in range(1, min(most_units, work.num_threads // row_groups) + 1)
    ]
    if asked is not None:  # all threads share the work, whatever the model says
        return max(grids)
    return min(grids, key=nanoseconds)


def _both_directions(work: _Work) -> KernelPlan | None:
    """A direction for each thread, if the matrices of a direction stay in a core's cache and oneDNN
    multiplies faster than MKL."""
    size, limits = work.cell.hidden_size, work.limits
    batch_size, num_steps, input_size = work.shape
    inner = input_size + size
    is_plain = work.cell.kind is LSTMCell and work.autocast_dtype is None
    if not is_plain or num_steps < 1 or 16 * size * inner > limits.cache_bytes:
        return None
    groups = max(1, min(work.num_threads // 2, batch_size // limits.fewest_rows))
    if fastest(-(-batch_size // groups), inner, 4 * size) != ONEDNN:
        return None
    num_parts, num_threads = 2 * groups, min(work.num_threads, 2 * groups)
    over = f"both directions over {num_threads} threads" if num_threads > 1 else "one thread"
    return KernelPlan(
        kernel="cpu",
        variant=f"compiled loop, {over}, products {PRODUCTS[ONEDNN]}",
        products=ONEDNN,
        num_parts=num_parts,
        directions=2,
    )


def _is_small(work: _Work) -> bool:
    """Whether torch's LSTM is as fast: little to do, or too few rows for the threads."""
    if work.cell.kind is not LSTMCell:
        return False
    limits, size = work.limits, work.cell.hidden_size
    batch_size, num_steps, input_size = work.shape
    num_rows = batch_size * num_steps
    is_short = num_rows < limits.fewest_steps and work.autocast_dtype is None
    smallest = limits.smallest_work * (4 if is_short else 1)
    few_rows = batch_size < 4 * limits.fewest_rows and work.num_threads > 1
    return num_rows * 4 * size * (size + input_size) < smallest or few_rows


def _compiled_step(work: _Work, kernel: str) -> KernelPlan | _Refusal:
    """A decoding step by numba's loops (`model_step.py`), for the kernels `cpu` and `scan`."""
    if numba is None:
        return _Refusal("numba is not installed")
    has_step = work.cell.kind in (LSTMCell, GRUCell, MinGRUCell, MinLSTMCell, SRUCell)
    if not has_step or work.device.type != "cpu" or not work.is_float32:
        return _Refusal("compiled steps are for cells of Elman in float32 on a CPU")
    if work.has_gradients or work.autocast_dtype is not None:
        return _Refusal("compiled steps have no gradients and do not follow autocast")
    limits, model = work.limits, work.model
    # The GRU with reset_before needs all units of a gate before the next product.
    divides = work.cell.form != "reset_before" and mkl.available()
    packs = divides and model is not None and model.float_bytes <= limits.packed_bytes
    step_bytes = work.cell.step_bytes if model is None else model.step_bytes
    num_parts = step_parts(step_bytes, limits) if divides else 1
    is_cheap = num_parts > 1 or model is None or model.is_int8
    few_rows = limits.few_streams if is_cheap or not packs else 1
    if work.shape[0] > few_rows and packs:
        return KernelPlan(kernel=kernel, variant=PACKED_MODEL)
    if work.shape[0] > few_rows and not work.is_named:
        return _Refusal(f"more than {few_rows} rows")
    variant = COMPILED_STEP if model is None else WHOLE_MODEL
    return KernelPlan(kernel=kernel, variant=variant, num_parts=num_parts)


def step_parts(num_bytes: int, limits: KernelLimits | None = None) -> int:
    """Number of threads for a decoding step, by the bytes of weights that it reads."""
    limits = limits or current_limits()
    num_threads = limits.num_threads or torch.get_num_threads()
    return min(num_threads, num_bytes // limits.shared_bytes + 1) if mkl.available() else 1


def _triton(work: _Work) -> KernelPlan | _Refusal:
    cell = work.cell
    if not runs_on(work.device) or (work.device.type != "cuda" and not work.is_named):
        return _Refusal("it needs Triton and a CUDA device of capability 8 or more", True)
    if cell.kind not in (LSTMCell, GRUCell, RNNCell) or cell.has_extras:
        return _Refusal("it computes RNN, LSTM and GRU without extras but projections", True)
    if work.is_step and not work.is_named:
        return _Refusal("one step has nothing to gain", is_obvious=True)
    dtype = work.autocast_dtype or work.dtype
    if dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return _Refusal("it computes in 16 or 32 bits")
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
    return _Refusal("the recurrent matrix and the batch do not fit on the chip")


def _torch(work: _Work) -> KernelPlan | _Refusal:
    if (name := _torch_name(work.cell)) is None:
        return _Refusal("torch has no such layer", is_obvious=True)
    if work.device.type not in ("cpu", "cuda"):
        return _Refusal(f"it is not tested on {work.device.type}")
    if work.cell.is_projected and work.device.type == "cpu":
        # torch would warn, and loop over the steps as the reference does.
        return _Refusal("on a CPU torch has no projections")
    if work.cell.projection_size >= work.cell.hidden_size:
        return _Refusal("torch's projections have fewer outputs than the layer has units")
    is_plain_lstm = work.cell.kind is LSTMCell and work.cell.is_plain
    if work.is_step and not work.is_named and not is_plain_lstm:
        return _Refusal("its weights would be copied at each step", is_obvious=True)
    kind = "cell" if work.is_step else "layer"
    return KernelPlan(kernel="torch", variant=f"its {name} {kind}")


def torch_has(cell: Cell) -> bool:
    """Whether torch has a layer that computes this cell."""
    return _torch_name(_facts(cell)) is not None


def _torch_name(cell: _Facts) -> str | None:
    if cell.has_extras:
        return None
    if cell.kind is RNNCell and cell.form in ("tanh", "relu"):
        return f"{cell.form} RNN"
    if cell.kind is LSTMCell:
        return "LSTM"
    return "GRU" if cell.kind is GRUCell and cell.form == "reset_after" else None


def _wave(work: _Work) -> KernelPlan | _Refusal:
    if not runs_on(work.device) or (work.device.type != "cuda" and not work.is_named):
        return _Refusal("it needs Triton and a CUDA device of capability 8 or more", True)
    if not work.cell.is_wave:
        return _Refusal("it computes LSTM with mogrifiers of low rank or a capped gate", True)
    if work.is_step and not work.is_named:
        return _Refusal("one step has nothing to gain", is_obvious=True)
    if work.is_ragged:
        return _Refusal("it reads rows of one length")
    dtype = work.autocast_dtype or work.dtype
    if dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return _Refusal("it computes in 16 or 32 bits")
    return KernelPlan(kernel="wave", variant="fused launches")


def _stepwise(work: _Work) -> KernelPlan | _Refusal:
    if not work.cell.is_stepwise:
        return _Refusal("it computes LSTM with mogrifiers, a capped gate or state dropout", True)
    if work.is_step and not work.is_named:
        return _Refusal("one step has nothing to gain", is_obvious=True)
    fused = ", fused" if runs_on(work.device) else ""
    return KernelPlan(kernel="stepwise", variant=f"step by step{fused}")


def _reference(work: _Work) -> KernelPlan:
    variant = "one step of the cell" if work.is_step else "loop over the cell"
    return KernelPlan(kernel="reference", variant=variant)


_PLANNERS: dict[str, Callable[[_Work], KernelPlan | _Refusal]] = {
    "scan": _scan,
    "cpu": _cpu,
    "triton": _triton,
    "torch": _torch,
    "wave": _wave,
    "stepwise": _stepwise,
    "reference": _reference,
}
"""Every kernel, the fastest first."""
MASKING = ("wave", "stepwise", "reference")
"""Kernels that can drop out the state."""
