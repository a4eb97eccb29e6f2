"""The launches of one slot of a wave, in Triton (`wave.py`): a step of each layer.

Forward, a round of a mogrifier is two launches: `narrow` multiplies the vectors that are read by
the first matrix of the round, `gate` multiplies the result by the second one and gates the other
vectors. `cell` makes the LSTM's gates, cells and outputs. Backward, `cell_slopes` makes the
gradients of the gates, `product_slopes` those of x and h; then two launches for each round, the
last one first: `narrow` again, from the gradients of the scores to those of the narrowed vectors,
and `narrow_slopes`.

What a launch needs of the launch before it, it reads after `_wait`; with OVERLAP it starts before,
and has read its weights by then. Gradients of x and h and the cells are in float32, sums too.

L layers, T time steps, B batch, I inputs, H hidden units, R rank of a mogrifier's matrices. Arrays
over time are (L, T, B, numbers); with EXTRA one step longer, for the step before the first one.
"""

from __future__ import annotations

from typing import Any

from elman.nn.kernels.persistent_loops import tl, triton
from elman.nn.kernels.stepwise_loops import _gate_slopes, _gates, _new_cell, _store_gates, _tanh

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:  # an older Triton: OVERLAP is False
    gdc_launch_dependents = gdc_wait = None

can_overlap = gdc_wait is not None
"""Whether this Triton can start a launch before the one before it ends."""

_VARYING = ["slot", "T", "B"]


@triton.jit
def _wait(OVERLAP: tl.constexpr):
    """Wait until the launch before has ended, and let the next one start.

    In this order one launch at most waits beside the one that runs. The other way round, each of
    those that wait starts another, and together they take the chip's room.
    """
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def _tiles(
    base,
    k_stride: tl.constexpr,
    n_stride: tl.constexpr,
    columns,
    N: tl.constexpr,
    K: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Columns of a matrix of K rows and N columns, as tiles of DEPTH rows."""
    tiles = ()
    for number in tl.static_range((K + DEPTH - 1) // DEPTH):
        k = number * DEPTH + tl.arange(0, DEPTH)
        at = base + k[:, None] * k_stride + columns[None, :] * n_stride
        real = (k < K)[:, None] & (columns < N)[None, :]
        tiles = tiles + (tl.load(at, mask=real, other=0),)  # noqa: RUF005 - Triton does not unpack
    return tiles


@triton.jit
def _vectors(base, rows, B, at_k, K: tl.constexpr):
    """Numbers `at_k` of rows of K numbers: (ROWS, DEPTH)."""
    at = base + rows[:, None] * K + at_k[None, :]
    real = (rows < B)[:, None] & (at_k < K)[None, :]
    return tl.load(at, mask=real, other=0, cache_modifier=".cg")


@triton.jit
def _added(
    product,
    vectors,
    rows,
    B,
    matrix,
    k_stride: tl.constexpr,
    n_stride: tl.constexpr,
    columns,
    N: tl.constexpr,
    K: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """`product` and rows of K numbers times columns of a matrix of K rows and N columns."""
    for first in range(0, K, DEPTH):
        k = first + tl.arange(0, DEPTH)
        at = matrix + k[:, None] * k_stride + columns[None, :] * n_stride
        weights = tl.load(at, mask=(k < K)[:, None] & (columns < N)[None, :], other=0)
        product = tl.dot(
            _vectors(vectors, rows, B, k, K), weights, product, input_precision=PRECISION
        )
    return product


@triton.jit(do_not_specialize=_VARYING)
def narrow(
    vectors,
    matrix,
    narrowed,
    slot,
    T,
    B,
    EXTRA: tl.constexpr,
    K: tl.constexpr,
    R: tl.constexpr,
    K_STRIDE: tl.constexpr,
    R_STRIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    HELD: tl.constexpr,
    PRECISION: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """`narrowed` = vectors of K numbers times `matrix` (L, R, K), or (L, K, R) by other strides."""
    layer = tl.program_id(2).to(tl.int64)
    t = slot - layer
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    own = matrix + layer * R * K
    if HELD:
        weights = _tiles(own, K_STRIDE, R_STRIDE, columns, R, K, DEPTH)
    _wait(OVERLAP)
    if (t >= 0) & (t < T):
        base = vectors + (layer * (T + EXTRA) + t) * B * K
        product = tl.zeros([ROWS, COLUMNS], tl.float32)
        if HELD:
            for number in tl.static_range((K + DEPTH - 1) // DEPTH):
                tile = _vectors(base, rows, B, number * DEPTH + tl.arange(0, DEPTH), K)
                product = tl.dot(tile, weights[number], product, input_precision=PRECISION)
        else:
            product = _added(
                product, base, rows, B, own, K_STRIDE, R_STRIDE, columns, R, K, DEPTH, PRECISION
            )
        at = narrowed + ((layer * T + t) * B + rows)[:, None] * R + columns[None, :]
        real = (rows < B)[:, None] & (columns < R)[None, :]
        tl.store(at, product.to(narrowed.dtype.element_ty), mask=real)


@triton.jit(do_not_specialize=_VARYING)
def gate(
    narrowed,
    matrix,
    old,
    new,
    gates,
    slot,
    T,
    B,
    EXTRA: tl.constexpr,
    N: tl.constexpr,
    R: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """`gates` = sigmoid(`matrix` (L, N, R) times `narrowed`) and `new` = 2 `gates` `old`, of N
    numbers each."""
    layer = tl.program_id(2).to(tl.int64)
    t = slot - layer
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    weights = _tiles(matrix + layer * N * R, 1, R, columns, N, R, DEPTH)
    _wait(OVERLAP)
    if (t >= 0) & (t < T):
        real = (rows < B)[:, None] & (columns < N)[None, :]
        own = rows[:, None] * N + columns[None, :]
        at_old = old + (layer * (T + EXTRA) + t) * B * N + own
        before = tl.load(at_old, mask=real, other=0, cache_modifier=".cg")
        base = narrowed + (layer * T + t) * B * R
        scores = tl.zeros([ROWS, COLUMNS], tl.float32)
        for number in tl.static_range((R + DEPTH - 1) // DEPTH):
            tile = _vectors(base, rows, B, number * DEPTH + tl.arange(0, DEPTH), R)
            scores = tl.dot(tile, weights[number], scores, input_precision=PRECISION)
        share = tl.sigmoid(scores)
        at = (layer * T + t) * B * N + own
        tl.store(gates + at, share.to(gates.dtype.element_ty), mask=real)
        after = 2 * share * before.to(tl.float32)
        tl.store(new + at, after.to(new.dtype.element_ty), mask=real)


@triton.jit(do_not_specialize=_VARYING)
def cell(
    x,
    h,
    W,
    U,
    bias,
    cells,
    values,
    outputs,
    read,
    above,
    between,
    mask,
    slot,
    T,
    B,
    H_EXTRA: tl.constexpr,
    I: tl.constexpr,  # noqa: E741 - inputs
    H: tl.constexpr,
    LAYERS: tl.constexpr,
    CAP: tl.constexpr,
    IS_MASKED: tl.constexpr,
    BETWEEN: tl.constexpr,
    UNITS: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """The LSTM's step from `x` and `h` as the last rounds left them.

    Writes the values of the gates, the new `cells`, `outputs`, what the next step will `read`
    (times `mask` (L, B, H)), and what the layer `above` reads, times `between` (L - 1, T, B, H), or
    (L - 1, 1, B, H) if BETWEEN is 2.
    """
    layer = tl.program_id(2).to(tl.int64)
    t = slot - layer
    units = tl.program_id(0) * UNITS + tl.arange(0, UNITS)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    # Columns of the products: a unit's gates lie side by side, so that two splits part them.
    n = tl.arange(0, 4 * UNITS)
    column_units = tl.program_id(0) * UNITS + n // 4
    # A unit beyond the last one computes the last one's gates, which are not stored.
    columns = (n % 4) * H + tl.minimum(column_units, H - 1)
    _wait(OVERLAP)
    if (t >= 0) & (t < T):
        step = (layer * T + t) * B
        bias_G = tl.load(bias + layer * 4 * H + columns).to(tl.float32)
        product = tl.zeros([ROWS, 4 * UNITS], tl.float32) + bias_G[None, :]
        at_W = W + layer * 4 * H * I
        product = _added(
            product, x + step * I, rows, B, at_W, 1, I, columns, 4 * H, I, DEPTH, PRECISION
        )
        at_h = h + (layer * (T + H_EXTRA) + t) * B * H
        at_U = U + layer * 4 * H * H
        product = _added(product, at_h, rows, B, at_U, 1, H, columns, 4 * H, H, DEPTH, PRECISION)
        even, odd = tl.split(tl.reshape(product, [ROWS, UNITS, 2, 2]))
        i, g = tl.split(even)
        f, o = tl.split(odd)
        i, f, g, o = tl.sigmoid(i), tl.sigmoid(f), _tanh(g), tl.sigmoid(o)
        real = (rows < B)[:, None] & (units < H)[None, :]
        own = rows[:, None] * H + units[None, :]
        at_c = cells + (layer * (T + 1) + t) * B * H + own
        c = tl.load(at_c, mask=real, other=0, cache_modifier=".cg")
        new = _new_cell(i, f, g, c, CAP)
        tl.store(at_c + B * H, new, mask=real)
        shown = o * _tanh(new)
        DTYPE: tl.constexpr = outputs.dtype.element_ty
        kept = shown
        if IS_MASKED:
            kept *= tl.load(mask + layer * B * H + own, mask=real, other=0).to(tl.float32)
        tl.store(read + (layer * (T + 1) + t + 1) * B * H + own, kept.to(DTYPE), mask=real)
        if layer + 1 < LAYERS:
            passed = shown
            if BETWEEN > 0:
                at_between = (layer if BETWEEN == 2 else layer * T + t) * B * H
                passed *= tl.load(between + at_between + own, mask=real, other=0).to(tl.float32)
            tl.store(above + (step + T * B) * H + own, passed.to(DTYPE), mask=real)
        tl.store(outputs + step * H + own, shown.to(DTYPE), mask=real)
        gate = step * 4 * H + rows[:, None] * 4 * H + units[None, :]
        _store_gates(values, gate, real, i, f, g, o, H)


@triton.jit(do_not_specialize=_VARYING)
def cell_slopes(
    to_outputs,
    to_last,
    to_h,
    to_x,
    to_cells,
    between,
    mask,
    values,
    cells,
    to_gates,
    slot,
    T,
    B,
    H: tl.constexpr,
    LAYERS: tl.constexpr,
    CAP: tl.constexpr,
    IS_MASKED: tl.constexpr,
    BETWEEN: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """The gradients of the gates, from those of the output: what the loss gives, what the next step
    read (`to_h`, or `to_last` after the last step), and what the layer above read (`to_x`)."""
    layer = tl.program_id(2).to(tl.int64)
    t = slot - layer
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = at < B * H
    own = layer * B * H + at
    _wait(OVERLAP)
    if (t >= 0) & (t < T):
        step = (layer * T + t) * B * H
        if t == T - 1:
            total = tl.load(to_last + own, mask=real, other=0)
        else:
            total = tl.load(to_h + own, mask=real, other=0, cache_modifier=".cg")
            if IS_MASKED:
                total *= tl.load(mask + own, mask=real, other=0).to(tl.float32)
        total += tl.load(to_outputs + step + at, mask=real, other=0).to(tl.float32)
        if layer + 1 < LAYERS:
            passed = tl.load(to_x + own + B * H, mask=real, other=0, cache_modifier=".cg")
            if BETWEEN > 0:
                at_between = layer * B * H if BETWEEN == 2 else step
                passed *= tl.load(between + at_between + at, mask=real, other=0).to(tl.float32)
            total += passed
        gate = step * 4 + (at // H) * (4 * H) + at % H
        i, f, g, o = _gates(values, gate, real, H)
        at_c = cells + (layer * (T + 1) + t) * B * H + at
        shown = _tanh(tl.load(at_c + B * H, mask=real, other=0))
        to_c = tl.load(to_cells + own, mask=real, other=0, cache_modifier=".cg")
        to_c += total * o * (1 - shown * shown)
        c = tl.load(at_c, mask=real, other=0)
        to_i, to_f, to_g, to_o = _gate_slopes(i, f, g, o, c, shown, total, to_c, CAP)
        _store_gates(to_gates, gate, real, to_i, to_f, to_g, to_o, H)
        tl.store(to_cells + own, to_c * f, mask=real)


@triton.jit
def _store_score_slopes(to_scores, slopes, old, gates, at, real):
    """The gradient of the scores of `gate`, from the `slopes` of the vectors that it gated."""
    share = tl.load(gates + at, mask=real, other=0).to(tl.float32)
    before = tl.load(old, mask=real, other=0).to(tl.float32)
    to_score = 2 * slopes * before * share * (1 - share)
    tl.store(to_scores + at, to_score.to(to_scores.dtype.element_ty), mask=real)


@triton.jit
def _product_slopes(
    to_gates,
    matrix,
    to_vectors,
    tile,
    rows,
    layer,
    step,
    B,
    N: tl.constexpr,
    H: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """`to_vectors` (L, B, N) = `to_gates` times `matrix` (L, 4 H, N); returned, too."""
    columns = tile * COLUMNS + tl.arange(0, COLUMNS)
    product = tl.zeros([ROWS, COLUMNS], tl.float32)
    at = to_gates + step * 4 * H
    at_matrix = matrix + layer * 4 * H * N
    product = _added(product, at, rows, B, at_matrix, N, 1, columns, N, 4 * H, DEPTH, PRECISION)
    own = rows[:, None] * N + columns[None, :]
    real = (rows < B)[:, None] & (columns < N)[None, :]
    tl.store(to_vectors + layer * B * N + own, product, mask=real)
    return product, own, real


@triton.jit(do_not_specialize=_VARYING)
def product_slopes(
    to_gates,
    W,
    U,
    to_x,
    to_h,
    to_inputs,
    old,
    gates,
    to_scores,
    slot,
    T,
    B,
    I: tl.constexpr,  # noqa: E741 - inputs
    H: tl.constexpr,
    ROUNDS: tl.constexpr,
    EXTRA: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """The gradients of x and h, some programs for each, and those of the scores of the last round,
    or of the inputs if there are none."""
    layer = tl.program_id(2).to(tl.int64)
    t = slot - layer
    tile = tl.program_id(0)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    tiles_x: tl.constexpr = (I + COLUMNS - 1) // COLUMNS
    _wait(OVERLAP)
    if (t >= 0) & (t < T):
        step = (layer * T + t) * B
        if tile < tiles_x:
            product, own, real = _product_slopes(
                to_gates, W, to_x, tile, rows, layer, step, B, I, H, ROWS, COLUMNS, DEPTH, PRECISION
            )
            if ROUNDS % 2 == 1:
                at_old = old + (layer * (T + EXTRA) + t) * B * I + own
                _store_score_slopes(to_scores, product, at_old, gates, step * I + own, real)
            if ROUNDS == 0 and layer == 0:
                at = to_inputs + step * I + own
                tl.store(at, product.to(to_inputs.dtype.element_ty), mask=real)
        else:
            tile -= tiles_x
            product, own, real = _product_slopes(
                to_gates, U, to_h, tile, rows, layer, step, B, H, H, ROWS, COLUMNS, DEPTH, PRECISION
            )
            if ROUNDS > 0 and ROUNDS % 2 == 0:
                at_old = old + (layer * (T + EXTRA) + t) * B * H + own
                _store_score_slopes(to_scores, product, at_old, gates, step * H + own, real)


@triton.jit(do_not_specialize=_VARYING)
def narrow_slopes(
    to_narrowed,
    matrix,
    gates,
    to_vectors,
    to_gated,
    to_inputs,
    old,
    old_gates,
    to_scores,
    slot,
    T,
    B,
    EXTRA: tl.constexpr,
    K: tl.constexpr,
    N: tl.constexpr,
    R: tl.constexpr,
    IS_LAST: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Add to `to_vectors` (L, B, K) what comes through `narrow`, and take `to_gated` (L, B, N) to
    before `gate`. The former are then those of what the round before gated (`old`, by `old_gates`):
    from them come the gradients of its scores. With IS_LAST, which is round 1, the latter are those
    of the inputs."""
    layer = tl.program_id(2).to(tl.int64)
    t = slot - layer
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    weights = _tiles(matrix + layer * R * K, K, 1, columns, K, R, DEPTH)
    _wait(OVERLAP)
    if (t >= 0) & (t < T):
        step = (layer * T + t) * B
        product = tl.zeros([ROWS, COLUMNS], tl.float32)
        for number in tl.static_range((R + DEPTH - 1) // DEPTH):
            n = number * DEPTH + tl.arange(0, DEPTH)
            tile = _vectors(to_narrowed + step * R, rows, B, n, R)
            product = tl.dot(tile, weights[number], product, input_precision=PRECISION)
        real = (rows < B)[:, None] & (columns < K)[None, :]
        at = to_vectors + (layer * B + rows)[:, None] * K + columns[None, :]
        product += tl.load(at, mask=real, other=0, cache_modifier=".cg")
        tl.store(at, product, mask=real)
        if not IS_LAST:
            own = rows[:, None] * K + columns[None, :]
            at_old = old + (layer * (T + EXTRA) + t) * B * K + own
            _store_score_slopes(to_scores, product, at_old, old_gates, step * K + own, real)
        real = (rows < B)[:, None] & (columns < N)[None, :]
        own = rows[:, None] * N + columns[None, :]
        at = to_gated + layer * B * N + own
        share = tl.load(gates + step * N + own, mask=real, other=0).to(tl.float32)
        slope = tl.load(at, mask=real, other=0, cache_modifier=".cg") * 2 * share
        tl.store(at, slope, mask=real)
        if IS_LAST and layer == 0:
            at_inputs = to_inputs + step * N + own
            tl.store(at_inputs, slope.to(to_inputs.dtype.element_ty), mask=real)


LAUNCHES: dict[str, Any] = {
    function.__name__: function
    for function in (
        narrow,
        gate,
        cell,
        cell_slopes,
        product_slopes,
        narrow_slopes,
    )
}
