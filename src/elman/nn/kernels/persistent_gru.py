"""The time loops of the GRU on CUDA, in Triton, where the reset acts before the product.

    n = tanh(W_n x + U_n (r * h) + b_n)

needs all of r * h before any of n, so programs synchronise twice per step instead of once: after
the state, and after r * h. So they do in the backward pass, after the gradient of n and after those
of r and u; each program makes whole sums for its own units. All else is as in
`persistent_loops.py`. Stage 0 is a whole sequence; stages 1 and 2 are the halves of one step, for
Triton's interpreter.

H hidden units (padded), B batch.
"""

from __future__ import annotations

from elman.nn.kernels.persistent_loops import (
    _columns,
    _multiply,
    _sigmoid,
    _signal,
    _tanh,
    _wait,
    tl,
    triton,
)


@triton.jit(do_not_specialize=["first", "last", "steps", "B"])
def forward(
    x,
    U,
    h,
    state,
    reset,
    lengths,
    counters,
    first,
    last,
    steps,
    B,
    H: tl.constexpr,
    TILE: tl.constexpr,
    REST: tl.constexpr,
    UNITS: tl.constexpr,
    ROWS: tl.constexpr,
    STAGE: tl.constexpr,
    RAGGED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """`x` (steps, B, 3, H) holds W x + b and receives r, u and n; `h` (steps + 1, B, H) the states,
    `state` (B, H) the present one in float32, `reset` (steps, B, H) r * h. `counters` (groups, 2)
    are zeros.
    """
    slice_index = tl.program_id(0)
    group = tl.program_id(1)
    zero = tl.full((), 0, tl.int64)  # offsets in time outgrow 32 bits
    direction = zero + tl.program_id(2)
    x += direction * steps * B * 3 * H
    U += direction * 3 * H * H
    h += direction * (steps + 1) * B * H
    state += direction * B * H
    reset += direction * steps * B * H
    counter = counters + (direction * tl.num_programs(1) + group) * 2
    DTYPE: tl.constexpr = x.dtype.element_ty

    units = slice_index * UNITS + tl.arange(0, UNITS)
    rows = group * ROWS + tl.arange(0, ROWS)
    real = (rows < B)[:, None]
    own = rows[:, None] * H + units[None, :]
    n = tl.arange(0, 2 * UNITS)
    columns = (n % 2) * H + slice_index * UNITS + n // 2  # a unit's r and u side by side
    w_ru = _columns(U, columns, 1, H, columns < 2 * H, H, TILE, REST, False)
    w_n = _columns(U + 2 * H * H, units, 1, H, units < H, H, TILE, REST, False)

    for t in range(first, last):
        time = zero + t * B
        gates = x + time * 3 * H + rows[:, None] * (3 * H) + units[None, :]
        old = tl.load(state + own, mask=real, other=0)
        if STAGE != 2:
            x_r = tl.load(gates, mask=real, other=0).to(tl.float32)
            x_u = tl.load(gates + H, mask=real, other=0).to(tl.float32)
            if STAGE == 0:
                _wait(counter, t * tl.num_programs(0))
            product = _multiply(
                h + time * H, rows, H, rows < B, w_ru, H, TILE, REST, False, PRECISION
            )
            u_r, u_u = tl.split(tl.reshape(product, [ROWS, UNITS, 2]))
            r = _sigmoid(x_r + u_r, STAGE == 0)
            u = _sigmoid(x_u + u_u, STAGE == 0)
            tl.store(reset + time * H + own, (r * old).to(DTYPE), mask=real)
            if STAGE == 0:
                _signal(counter + 1)
            tl.store(gates, r.to(DTYPE), mask=real)
            tl.store(gates + H, u.to(DTYPE), mask=real)
        if STAGE == 2:
            u = tl.load(gates + H, mask=real, other=0).to(tl.float32)
        if STAGE != 1:
            x_n = tl.load(gates + 2 * H, mask=real, other=0).to(tl.float32)
            if STAGE == 0:
                _wait(counter + 1, (t + 1) * tl.num_programs(0))
            product_n = _multiply(
                reset + time * H, rows, H, rows < B, w_n, H, TILE, REST, False, PRECISION
            )
            content = _tanh(x_n + product_n, STAGE == 0)
            new = (1 - u) * old + u * content
            if RAGGED:
                alive = (t < tl.load(lengths + rows, mask=rows < B, other=0))[:, None]
                new = tl.where(alive, new, old)
            tl.store(h + (time + B) * H + own, new.to(DTYPE), mask=real)
            if STAGE == 0:
                _signal(counter)
            tl.store(gates + 2 * H, content.to(DTYPE), mask=real)
            tl.store(state + own, new, mask=real)
        tl.debug_barrier()  # the next step's threads may read what other threads have kept


@triton.jit(do_not_specialize=["first", "last", "steps", "B"])
def backward(
    to_outputs,
    U,
    x,
    h,
    to_gates,
    to_h,
    lengths,
    counters,
    first,
    last,
    steps,
    B,
    H: tl.constexpr,
    TILE: tl.constexpr,
    REST: tl.constexpr,
    UNITS: tl.constexpr,
    ROWS: tl.constexpr,
    STAGE: tl.constexpr,
    RAGGED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """`to_gates` (steps, B, 3, H) receives the gradients of the gates before their nonlinearities.

    `to_h` (B, H), in float32, holds the final state's gradient and receives the initial one's, but
    for the part that comes through r and u of the first step. `counters` (groups, 2) are zeros.
    """
    slice_index = tl.program_id(0)
    group = tl.program_id(1)
    zero = tl.full((), 0, tl.int64)
    direction = zero + tl.program_id(2)
    to_outputs += direction * steps * B * H
    U += direction * 3 * H * H
    x += direction * steps * B * 3 * H
    h += direction * (steps + 1) * B * H
    to_gates += direction * steps * B * 3 * H
    to_h += direction * B * H
    counter = counters + (direction * tl.num_programs(1) + group) * 2
    DTYPE: tl.constexpr = x.dtype.element_ty

    units = slice_index * UNITS + tl.arange(0, UNITS)
    is_unit = units < H
    rows = group * ROWS + tl.arange(0, ROWS)
    real = (rows < B)[:, None]
    own = rows[:, None] * H + units[None, :]
    w_r = _columns(U, units, H, 1, is_unit, H, TILE, REST, False)
    w_u = _columns(U + H * H, units, H, 1, is_unit, H, TILE, REST, False)
    w_n = _columns(U + 2 * H * H, units, H, 1, is_unit, H, TILE, REST, False)

    for s in range(first, last):
        t = steps - 1 - s
        time = zero + t * B
        at = time * 3 * H + rows[:, None] * (3 * H) + units[None, :]
        r = tl.load(x + at, mask=real, other=0).to(tl.float32)
        u = tl.load(x + at + H, mask=real, other=0).to(tl.float32)
        old = tl.load(h + time * H + own, mask=real, other=0).to(tl.float32)
        total = tl.load(to_h + own, mask=real, other=0)
        alive = real
        if RAGGED:
            alive = (t < tl.load(lengths + rows, mask=rows < B, other=0))[:, None]
        if STAGE != 2:
            content = tl.load(x + at + 2 * H, mask=real, other=0).to(tl.float32)
            total += tl.load(to_outputs + time * H + own, mask=real, other=0).to(tl.float32)
            if s > 0:
                if STAGE == 0:
                    _wait(counter, s * tl.num_programs(0))
                after = to_gates + (time + B) * 3 * H
                total += _multiply(
                    after, rows, 3 * H, rows < B, w_r, H, TILE, REST, False, PRECISION
                )
                total += _multiply(
                    after + H, rows, 3 * H, rows < B, w_u, H, TILE, REST, False, PRECISION
                )
            d_n = tl.where(alive, total * u * (1 - content * content), 0.0)
            d_u = tl.where(alive, total * (content - old) * u * (1 - u), 0.0)
            tl.store(to_gates + at + 2 * H, d_n.to(DTYPE), mask=real)
            if STAGE == 0:
                _signal(counter + 1)
            tl.store(to_gates + at + H, d_u.to(DTYPE), mask=real)
        if STAGE == 1:
            tl.store(to_h + own, total, mask=real)
        if STAGE != 1:
            if STAGE == 0:
                _wait(counter + 1, (s + 1) * tl.num_programs(0))
            through = _multiply(
                to_gates + time * 3 * H + 2 * H,
                rows,
                3 * H,
                rows < B,
                w_n,
                H,
                TILE,
                REST,
                False,
                PRECISION,
            )
            d_r = tl.where(alive, through * old * r * (1 - r), 0.0)
            tl.store(to_gates + at, d_r.to(DTYPE), mask=real)
            if STAGE == 0:
                _signal(counter)
            kept = tl.where(alive, total * (1 - u) + through * r, total)
            tl.store(to_h + own, kept, mask=real)
        tl.debug_barrier()
