"""The time loops of LSTM, GRU and RNN on CUDA, in Triton: a whole sequence in one launch.

Forward, a program owns a few hidden units. It loads their rows of the recurrent matrix once and
keeps them on the chip; at every step it reads the whole previous state of some rows of the batch,
multiplies, and writes its own units' new state. Backward, four or eight programs share a slice of
units: each multiplies the gradients of one gate, or of half of it, leaves its part of the sum for
the others, and then turns the sum for its own share of the units into gradients of the gates.

Programs wait for each other by counters in memory: a program that has written adds one, and before
reading it waits until the programs that it reads from have added theirs. Rows of the batch do not
depend on each other, and groups of them have counters of their own. All programs must run at the
same time for this: the launch is cooperative, and never larger than the device
(`persistent_tiling.py`). Without `PERSISTENT` no program waits, and each launch makes one step;
that form is for Triton's interpreter, which runs one program after the other.

H hidden units (padded: a number of tiles, and a smaller one), B batch, G gates.
"""

from __future__ import annotations

from typing import Any

from elman.base.errors import ElmanError

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise ElmanError(
        "kernels for CUDA need Triton, which torch brings where it has CUDA",
        "pip install 'elman[gpu]'",
    ) from error

LSTM, GRU, TANH, RELU, SIGMOID, GRU_BEFORE = range(6)
"""Cells: TANH, RELU and SIGMOID are RNNs; GRU_BEFORE (reset_before) is in `persistent_gru.py`."""

_LSTM: Any = tl.constexpr(LSTM)
_GRU: Any = tl.constexpr(GRU)
_TANH: Any = tl.constexpr(TANH)
_RELU: Any = tl.constexpr(RELU)


@triton.jit
def _sigmoid(x, FAST: tl.constexpr):
    """By the chip's own reciprocal, a rounding or two from exact, where it is `FAST`: Triton would
    divide, which takes several instructions."""
    if FAST:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;",
            "=f,f",
            [1 + tl.exp(-x)],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
    else:  # noqa: RET505 - Triton wants one end of a function, or two of an `if`
        return tl.sigmoid(x)


@triton.jit
def _tanh(x, FAST: tl.constexpr):
    return 2 * _sigmoid(2 * x, FAST) - 1


@triton.jit
def _signal(counter):
    """Say that what this program has written can be read."""
    tl.debug_barrier()  # all threads have written
    tl.atomic_add(counter, 1, sem="release")


@triton.jit
def _wait(counter, target):
    """Until `target` signals have come: one thread looks, the others wait for it."""
    tl.inline_asm_elementwise(
        """{
            .reg .pred p;
            .reg .b32 value;
            mov.u32 value, %tid.x;
            setp.ne.u32 p, value, 0;
            @p bra DONE;
        LOOK:
            ld.acquire.gpu.global.s32 value, [$1];
            setp.lt.s32 p, value, $2;
            @p bra LOOK;
        DONE:
            bar.sync 0;
            mov.b32 $0, 0;
        }""",
        "=r,l,r",
        [counter, target],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _rows(base, rows, row_stride, real, FIRST: tl.constexpr, K: tl.constexpr):
    """K numbers of each row from `FIRST` on: (ROWS, K)."""
    at = base + rows[:, None] * row_stride + (FIRST + tl.arange(0, K))[None, :]
    return tl.load(at, mask=real[:, None], other=0, cache_modifier=".cg")


@triton.jit
def _matrix(
    base,
    columns,
    k_stride,
    column_stride,
    real,
    FIRST: tl.constexpr,
    K: tl.constexpr,
    SWAP: tl.constexpr,
):
    """K rows of a matrix's columns, from `FIRST` on: (K, N), or (N, K) for swapped products."""
    k = FIRST + tl.arange(0, K)
    if SWAP:
        at = base + columns[:, None] * column_stride + k[None, :] * k_stride
        return tl.load(at, mask=real[:, None], other=0)
    else:  # noqa: RET505 - Triton wants one end of a function, or two of an `if`
        at = base + k[:, None] * k_stride + columns[None, :] * column_stride
        return tl.load(at, mask=real[None, :], other=0)


@triton.jit
def _columns(
    base,
    columns,
    k_stride,
    column_stride,
    real,
    K: tl.constexpr,
    TILE: tl.constexpr,
    REST: tl.constexpr,
    SWAP: tl.constexpr,
):
    """All K rows of a matrix's columns, as tiles of `TILE` rows and one of `REST`."""
    tiles = ()
    for number in tl.static_range(K // TILE):
        tile = _matrix(base, columns, k_stride, column_stride, real, number * TILE, TILE, SWAP)
        tiles = tiles + (tile,)  # noqa: RUF005 - Triton does not unpack
    if REST > 0:
        rest = _matrix(base, columns, k_stride, column_stride, real, K - REST, REST, SWAP)
        tiles = tiles + (rest,)  # noqa: RUF005
    return tiles


@triton.jit
def _multiply(
    base,
    rows,
    row_stride,
    real,
    w,
    K: tl.constexpr,
    TILE: tl.constexpr,
    REST: tl.constexpr,
    SWAP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Rows of K numbers times the matrix of tiles `w`.

    Swapped, the matrix is the left factor: Hopper's tensor cores take 64 rows at a time, which a
    matrix has where a batch has not.
    """
    COUNT: tl.constexpr = K // TILE
    tile = _rows(base, rows, row_stride, real, 0, TILE)
    product = None
    for number in tl.static_range(COUNT + (REST > 0)):
        if SWAP:
            part = tl.dot(w[number], tl.trans(tile), input_precision=PRECISION)
        else:
            part = tl.dot(tile, w[number], input_precision=PRECISION)
        if number == 0:
            product = part
        else:
            product += part
        # Asked for while the product is made: before it, its fence would wait for the answer.
        if number + 1 < COUNT:
            tile = _rows(base, rows, row_stride, real, (number + 1) * TILE, TILE)
        elif number + 1 == COUNT and REST > 0:
            tile = _rows(base, rows, row_stride, real, K - REST, REST)
    if SWAP:
        product = tl.trans(product)
    return product


@triton.jit(do_not_specialize=["first", "last", "steps", "B"])  # one for all lengths
def forward(
    x,
    U,
    inner_bias,
    h,
    state,
    inner,
    lengths,
    counters,
    first,
    last,
    steps,
    B,
    CELL: tl.constexpr,
    GATES: tl.constexpr,
    H: tl.constexpr,
    TILE: tl.constexpr,
    REST: tl.constexpr,
    UNITS: tl.constexpr,
    ROWS: tl.constexpr,
    SWAP: tl.constexpr,
    PERSISTENT: tl.constexpr,
    RAGGED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Steps `first` to `last`. `x` (steps, B, G, H) holds W x + b and receives the gates' values.

    `h` (steps + 1, B, H) holds the initial state and receives the others. `state` is in float32:
    the LSTM's cells (steps + 1, B, H), or the GRU's present state (B, H). `counters` (groups) are
    zeros.
    """
    slice_index = tl.program_id(0)
    group = tl.program_id(1)
    num_groups = tl.num_programs(1)
    zero = tl.full((), 0, tl.int64)  # offsets in time outgrow 32 bits
    direction = zero + tl.program_id(2)
    x += direction * steps * B * GATES * H
    U += direction * GATES * H * H
    h += direction * (steps + 1) * B * H
    counter = counters + direction * num_groups + group
    DTYPE: tl.constexpr = x.dtype.element_ty
    if CELL == _LSTM:
        state += direction * (steps + 1) * B * H
    if CELL == _GRU:
        state += direction * B * H
        inner += direction * steps * B * H
        inner_bias += direction * H

    units = slice_index * UNITS + tl.arange(0, UNITS)
    rows = group * ROWS + tl.arange(0, ROWS)
    real = (rows < B)[:, None]
    own = rows[:, None] * H + units[None, :]
    # Columns of the product: a unit's gates lie side by side, so that two splits part them.
    if GATES == 1:
        columns = units
        is_gate = units < H
    else:
        n = tl.arange(0, 4 * UNITS)
        columns = (n % 4) * H + slice_index * UNITS + n // 4
        is_gate = (n % 4) < GATES
    w = _columns(U, columns, 1, H, is_gate, H, TILE, REST, SWAP)
    if CELL == _GRU:
        inner_b = tl.load(inner_bias + units)[None, :].to(tl.float32)

    for t in range(first, last):
        time = zero + t * B
        h_now = h + time * H
        h_next = h_now + B * H
        # What does not depend on the others is asked for before the waiting.
        gates = x + time * GATES * H + rows[:, None] * (GATES * H) + units[None, :]
        x_0 = tl.load(gates, mask=real, other=0)
        if GATES > 1:
            x_1 = tl.load(gates + H, mask=real, other=0)
            x_2 = tl.load(gates + 2 * H, mask=real, other=0)
        if CELL == _LSTM:
            x_3 = tl.load(gates + 3 * H, mask=real, other=0)
            old = tl.load(state + time * H + own, mask=real, other=0)
        if CELL == _GRU:
            old = tl.load(state + own, mask=real, other=0)
        if RAGGED:
            alive = (t < tl.load(lengths + rows, mask=rows < B, other=0))[:, None]
            shown_old = tl.load(h_now + own, mask=real, other=0)

        if PERSISTENT:
            _wait(counter, t * tl.num_programs(0))
        product = _multiply(h_now, rows, H, rows < B, w, H, TILE, REST, SWAP, PRECISION)
        # Not earlier: converting a number waits until it is loaded.
        x_0 = x_0.to(tl.float32)
        if GATES > 1:
            x_1, x_2 = x_1.to(tl.float32), x_2.to(tl.float32)
        if CELL == _LSTM:
            x_3 = x_3.to(tl.float32)
            even, odd = tl.split(tl.reshape(product, [ROWS, UNITS, 2, 2]))
            u_i, u_g = tl.split(even)
            u_f, u_o = tl.split(odd)
            i = _sigmoid(x_0 + u_i, PERSISTENT)
            f = _sigmoid(x_1 + u_f, PERSISTENT)
            g = _tanh(x_2 + u_g, PERSISTENT)
            o = _sigmoid(x_3 + u_o, PERSISTENT)
            new = f * old + i * g
            shown = o * _tanh(new, PERSISTENT)
        elif CELL == _GRU:
            even, odd = tl.split(tl.reshape(product, [ROWS, UNITS, 2, 2]))
            u_r, u_n = tl.split(even)
            u_u, _ = tl.split(odd)
            r = _sigmoid(x_0 + u_r, PERSISTENT)
            u = _sigmoid(x_1 + u_u, PERSISTENT)
            m = u_n + inner_b
            n_ = _tanh(x_2 + r * m, PERSISTENT)
            new = (1 - u) * old + u * n_
            shown = new
        elif CELL == _TANH:
            shown = _tanh(x_0 + product, PERSISTENT)
        elif CELL == _RELU:
            # Not a maximum, which would turn NaN into 0.
            shown = tl.where(x_0 + product < 0, 0.0, x_0 + product)
        else:
            shown = _sigmoid(x_0 + product, PERSISTENT)
        shown_new = shown.to(DTYPE)
        if RAGGED:
            shown_new = tl.where(alive, shown_new, shown_old)
            if GATES > 1:
                new = tl.where(alive, new, old)
        tl.store(h_next + own, shown_new, mask=real)
        if PERSISTENT:
            _signal(counter)
        # The others can go on; what follows is for the backward pass.
        if CELL == _LSTM:
            tl.store(state + (time + B) * H + own, new, mask=real)
            tl.store(gates, i.to(DTYPE), mask=real)
            tl.store(gates + H, f.to(DTYPE), mask=real)
            tl.store(gates + 2 * H, g.to(DTYPE), mask=real)
            tl.store(gates + 3 * H, o.to(DTYPE), mask=real)
        if CELL == _GRU:
            tl.store(state + own, new, mask=real)
            tl.store(gates, r.to(DTYPE), mask=real)
            tl.store(gates + H, u.to(DTYPE), mask=real)
            tl.store(gates + 2 * H, n_.to(DTYPE), mask=real)
            tl.store(inner + time * H + own, m.to(DTYPE), mask=real)
        tl.debug_barrier()  # the next step's threads may read what other threads have kept


@triton.jit(do_not_specialize=["first", "last", "steps", "B"])
def backward(
    to_outputs,
    U,
    x,
    h,
    state,
    inner,
    to_gates,
    to_projected,
    to_h,
    to_c,
    parts,
    lengths,
    counters,
    first,
    last,
    steps,
    B,
    CELL: tl.constexpr,
    GATES: tl.constexpr,
    H: tl.constexpr,
    TILE: tl.constexpr,
    REST: tl.constexpr,
    UNITS: tl.constexpr,
    ROWS: tl.constexpr,
    SWAP: tl.constexpr,
    PIECES: tl.constexpr,
    STAGE: tl.constexpr,
    RAGGED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Steps `first` to `last`, counted from the end. `to_gates` (steps, B, G, H) receives the
    gradients of U h, `to_projected` those of W x + b where they are others (GRU).

    `to_h` and `to_c` (B, H), in float32, hold the final state's gradients and receive the initial
    one's, but for the part of `to_h` that comes through U in the first step. `parts` (2, G times
    pieces, B, H) is float32 to work in, `counters` (groups, 1 + slices) are zeros. Stage 0 is the
    whole; 1 makes the products of one step alone, 2 the rest of it.
    """
    SPLIT: tl.constexpr = PIECES if GATES == 1 else 4 * PIECES
    N: tl.constexpr = SPLIT * UNITS
    pid = tl.program_id(0)
    piece = pid % SPLIT
    gate = piece // PIECES
    k_first = (piece % PIECES) * (H // PIECES)
    group = tl.program_id(1)
    num_groups = tl.num_programs(1)
    zero = tl.full((), 0, tl.int64)  # offsets in time outgrow 32 bits
    direction = zero + tl.program_id(2)
    DTYPE: tl.constexpr = x.dtype.element_ty
    to_outputs += direction * steps * B * H
    U += direction * GATES * H * H
    x += direction * steps * B * GATES * H
    h += direction * (steps + 1) * B * H
    to_gates += direction * steps * B * GATES * H
    to_h += direction * B * H
    parts += direction * 2 * GATES * PIECES * B * H
    if CELL == _LSTM:
        state += direction * (steps + 1) * B * H
        to_c += direction * B * H
    if CELL == _GRU:
        inner += direction * steps * B * H
        to_projected += direction * steps * B * GATES * H

    counter = counters + (direction * num_groups + group) * (1 + tl.num_programs(0) // SPLIT)
    slice_counter = counter + 1 + pid // SPLIT
    shared = (pid // SPLIT) * N + tl.arange(0, N)
    is_shared = shared < H
    units = pid * UNITS + tl.arange(0, UNITS)
    rows = group * ROWS + tl.arange(0, ROWS)
    real = (rows < B)[:, None] & (units < H)[None, :]
    own = rows[:, None] * H + units[None, :]
    multiplies = gate < GATES
    at_w = U + (gate * H + k_first) * H
    K: tl.constexpr = H // PIECES
    w = _columns(at_w, shared, H, 1, is_shared & multiplies, K, TILE, REST, SWAP)

    for s in range(first, last):
        t = steps - 1 - s
        time = zero + t * B
        slot = parts + (s % 2) * GATES * PIECES * B * H
        if STAGE != 1:
            # What does not depend on the others is asked for before the waiting.
            at_gates = time * GATES * H + rows[:, None] * (GATES * H) + units[None, :]
            total = tl.load(to_h + own, mask=real, other=0)
            to_output = tl.load(to_outputs + time * H + own, mask=real, other=0)
            if GATES > 1:
                v_0 = tl.load(x + at_gates, mask=real, other=0)
                v_1 = tl.load(x + at_gates + H, mask=real, other=0)
                v_2 = tl.load(x + at_gates + 2 * H, mask=real, other=0)
            if CELL == _LSTM:
                v_3 = tl.load(x + at_gates + 3 * H, mask=real, other=0)
                c_old = tl.load(state + time * H + own, mask=real, other=0)
                c_new = tl.load(state + (time + B) * H + own, mask=real, other=0)
                to_cell = tl.load(to_c + own, mask=real, other=0)
            elif CELL == _GRU:
                m = tl.load(inner + time * H + own, mask=real, other=0)
                h_old = tl.load(h + time * H + own, mask=real, other=0)
            else:
                shown = tl.load(h + (time + B) * H + own, mask=real, other=0)
            if RAGGED:
                alive = (t < tl.load(lengths + rows, mask=rows < B, other=0))[:, None]
        if STAGE != 2:  # noqa: SIM102 - one is known before, one is not
            if (s > 0) & multiplies:
                after = to_gates + (time + B) * GATES * H + gate * H + k_first
                if STAGE == 0:
                    _wait(counter, s * tl.num_programs(0))
                part = _multiply(
                    after, rows, GATES * H, rows < B, w, K, TILE, REST, SWAP, PRECISION
                )
                at_part = slot + (piece * B + rows[:, None]) * H + shared[None, :]
                tl.store(at_part, part, mask=(rows < B)[:, None] & is_shared[None, :])
                if STAGE == 0:
                    _signal(slice_counter)
        if STAGE != 1:
            if s > 0:
                if STAGE == 0:
                    _wait(slice_counter, s * GATES * PIECES)
                for other in tl.static_range(GATES * PIECES):
                    at_part = slot + other * B * H + own
                    total += tl.load(at_part, mask=real, other=0, cache_modifier=".cg")

            total += to_output.to(tl.float32)
            if GATES > 1:
                v_0, v_1, v_2 = v_0.to(tl.float32), v_1.to(tl.float32), v_2.to(tl.float32)
            kept = tl.zeros_like(total)
            if CELL == _LSTM:
                v_3 = v_3.to(tl.float32)
                shown = _tanh(c_new, STAGE == 0)
                through = to_cell + total * v_3 * (1 - shown * shown)
                d_0 = through * v_2 * v_0 * (1 - v_0)
                d_1 = through * c_old * v_1 * (1 - v_1)
                d_2 = through * v_0 * (1 - v_2 * v_2)
                d_3 = total * shown * v_3 * (1 - v_3)
                through = through * v_1
            elif CELL == _GRU:
                m, h_old = m.to(tl.float32), h_old.to(tl.float32)
                d_n = total * v_1 * (1 - v_2 * v_2)
                d_0 = d_n * m * v_0 * (1 - v_0)
                d_1 = total * (v_2 - h_old) * v_1 * (1 - v_1)
                d_2 = d_n * v_0
                kept = total * (1 - v_1)
            else:
                shown = shown.to(tl.float32)
            if CELL == _TANH:
                d_0 = total * (1 - shown * shown)
            elif CELL == _RELU:
                d_0 = tl.where(shown == 0, 0.0, total)
            elif GATES == 1:
                d_0 = total * shown * (1 - shown)
            if RAGGED:
                kept = tl.where(alive, kept, total)
                d_0 = tl.where(alive, d_0, 0.0)
                if GATES > 1:
                    d_1 = tl.where(alive, d_1, 0.0)
                    d_2 = tl.where(alive, d_2, 0.0)
                if CELL == _LSTM:
                    d_3 = tl.where(alive, d_3, 0.0)
                    through = tl.where(alive, through, to_cell)
                if CELL == _GRU:
                    d_n = tl.where(alive, d_n, 0.0)
            out = to_gates + at_gates
            tl.store(out, d_0.to(DTYPE), mask=real)
            if GATES > 1:
                tl.store(out + H, d_1.to(DTYPE), mask=real)
                tl.store(out + 2 * H, d_2.to(DTYPE), mask=real)
            if CELL == _LSTM:
                tl.store(out + 3 * H, d_3.to(DTYPE), mask=real)
            if STAGE == 0:
                _signal(counter)
            if CELL == _LSTM:
                tl.store(to_c + own, through, mask=real)
            if CELL == _GRU:
                tl.store(to_projected + at_gates, d_0.to(DTYPE), mask=real)
                tl.store(to_projected + at_gates + H, d_1.to(DTYPE), mask=real)
                tl.store(to_projected + at_gates + 2 * H, d_n.to(DTYPE), mask=real)
            tl.store(to_h + own, kept, mask=real)
            tl.debug_barrier()
