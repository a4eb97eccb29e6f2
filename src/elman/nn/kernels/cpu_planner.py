"""Plan the CPU kernels: the compiled loops over time, and the compiled steps of decoding."""

from __future__ import annotations

from typing import NamedTuple

import torch

from elman.nn.cells import GRUCell, LSTMCell
from elman.nn.kernels import blocks, mkl
from elman.nn.kernels.kernel_plan import (
    COMPILED_STEP,
    PACKED_MODEL,
    PRODUCTS,
    WHOLE_MODEL,
    KernelPlan,
    Refusal,
    Workload,
)
from elman.nn.kernels.limits import KernelLimits, current_limits
from elman.nn.kernels.loops import numba
from elman.nn.kernels.products import BFLOAT16, MKL, ONEDNN, fastest
from elman.nn.scan_cells import MinGRUCell, MinLSTMCell, SRUCell

UNITS_APART = 16
"""Threads divide units in multiples of this, so that no two write to the same cache line."""
FEW_ROWS_APART, ROWS_APART = 4, 16
"""Up to 16 rows of a decoding step, and more, are padded to a multiple of these: oneDNN compiles
code for each number of rows."""


def plan_cpu(work: Workload) -> KernelPlan | Refusal:
    cell, limits, num_threads = work.cell, work.limits, work.num_threads
    if work.device.type != "cpu":
        return Refusal("it runs on a CPU", is_obvious=True)
    if cell.kind not in (LSTMCell, GRUCell) or not cell.is_plain:
        return Refusal("it computes LSTM and GRU without extras", is_obvious=True)
    if work.cell.dtype != torch.float32 or work.state_dtype != torch.float32:
        return Refusal("it computes in float32 only")
    is_half = work.autocast_dtype == torch.bfloat16 and cell.kind is LSTMCell
    if work.autocast_dtype is not None:
        if not is_half:
            return Refusal("it follows autocast to bfloat16 for LSTM only")
        if problem := blocks.problem():
            return Refusal(problem)
    elif work.dtype != torch.float32:
        return Refusal("it computes in float32 only")
    if work.is_step and not is_half:
        found = compiled_step(work, "cpu")
        if isinstance(found, KernelPlan) or not work.is_named:
            return found
    if problem := mkl.problem():
        return Refusal(problem)
    if work.directions == 2 and (both := _both_directions(work)) is not None:
        return both
    if not work.is_named and _is_small(work):
        return Refusal("too little work for compiled loops to gain from")
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


def _grid(work: Workload) -> tuple[int, int]:
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


def _both_directions(work: Workload) -> KernelPlan | None:
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


def _is_small(work: Workload) -> bool:
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


def compiled_step(work: Workload, kernel: str) -> KernelPlan | Refusal:
    """A decoding step by numba's loops (`model_step.py`), for the kernels `cpu` and `scan`."""
    if numba is None:
        return Refusal("numba is not installed")
    has_step = work.cell.kind in (LSTMCell, GRUCell, MinGRUCell, MinLSTMCell, SRUCell)
    if not has_step or work.device.type != "cpu" or not work.is_float32:
        return Refusal("compiled steps are for cells of Elman in float32 on a CPU")
    if work.has_gradients or work.autocast_dtype is not None:
        return Refusal("compiled steps have no gradients and do not follow autocast")
    limits, model = work.limits, work.model
    # The GRU with reset_before needs all units of a gate before the next product.
    divides = work.cell.form != "reset_before" and mkl.available()
    packs = divides and model is not None and model.float_bytes <= limits.packed_bytes
    step_bytes = work.cell.step_bytes if model is None else model.step_bytes
    num_parts = step_parts(step_bytes, limits) if divides else 1
    num_rows, few_rows = work.shape[0], limits.few_streams
    if packs and num_rows > 1:
        assert model is not None
        # Two rows are faster by oneDNN; by MKL, more than a few, if threads can divide the units.
        if not model.is_int8 and not (num_parts > 1 and mkl.onednn_problem()):
            few_rows = 1
        if num_rows > few_rows:
            products, num_parts = _packed(work, model.float_bytes // 4)
            return KernelPlan(
                kernel=kernel, variant=PACKED_MODEL, products=products, num_parts=num_parts
            )
    if num_rows > few_rows and not work.is_named:
        return Refusal(f"more than {few_rows} rows")
    variant = COMPILED_STEP if model is None else WHOLE_MODEL
    return KernelPlan(kernel=kernel, variant=variant, num_parts=num_parts)


def padded_rows(num_rows: int) -> int:
    """The rows of a decoding step times weights packed for oneDNN."""
    apart = FEW_ROWS_APART if num_rows <= ROWS_APART else ROWS_APART
    return -(-num_rows // apart) * apart


def _packed(work: Workload, num_weights: int) -> tuple[str, int]:
    """What multiplies the packed weights of a model, and how many threads divide its units: with
    MKL they divide the rows, so the plan has one part."""
    if mkl.onednn_problem():
        return MKL, 1
    limits, size = work.limits, work.cell.hidden_size
    num_threads = limits.num_threads or torch.get_num_threads()
    num_rows = padded_rows(work.shape[0])
    if num_threads > 1 and num_rows * num_weights >= limits.step_work * num_threads:
        return ONEDNN, num_threads
    # One product for all numbers of rows, so that weights are packed once.
    return fastest(ROWS_APART, size, 4 * size), 1


def step_parts(num_bytes: int, limits: KernelLimits | None = None) -> int:
    """Number of threads for a decoding step, by the bytes of weights that it reads."""
    limits = limits or current_limits()
    num_threads = limits.num_threads or torch.get_num_threads()
    return min(num_threads, num_bytes // limits.shared_bytes + 1) if mkl.available() else 1
