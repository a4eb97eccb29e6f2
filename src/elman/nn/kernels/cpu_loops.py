"""Loops over time compiled by numba: the LSTM, forward and backward, for some rows of a batch.

All arrays are float32, time first and contiguous; `states` hold T + 1 steps, the initial one first.
A loop works on the rows from `first` to `last` and leaves the others alone, so that several threads
share a batch without meeting; those by units have threads that share out the units of all rows and
meet at every step. `lengths_B` says how many steps of a row are real; beyond them its state stands
still and nothing flows back.

U comes packed (`mkl.py`). What the backward loops leave are the gradients of the gates' sums; those
of the matrices are products over all steps at once, which torch does better unless all of it fits
a core's cache. The GRU's loops are in `cpu_gru_loops.py`.

T time steps, B batch, H hidden units, G gates times H.
"""

from __future__ import annotations

from typing import Any

from elman.nn.kernels.loops import F32, compiled, inlined, sigmoid, tanh
from elman.nn.kernels.mkl import (
    NO_TRANSPOSE,
    PACKED,
    ROW_MAJOR,
    TRANSPOSE,
    set_threads,
    sgemm_compute,
)
from elman.nn.kernels.team import barrier, team_size, thread_number

Array = Any


@inlined
def address(array: Array, time: int, row: int) -> Any:
    """Where a row of a step begins."""
    return array.ctypes.data + 4 * (time * array.shape[1] + row) * array.shape[2]


@inlined
def multiply(
    left: Any,
    stride: int,
    packed: Array,
    rows: int,
    inner: int,
    outer: int,
    beta: float,
    out: Any,
    out_stride: int,
) -> None:
    """out = left times a packed matrix (inner by outer) + beta * out."""
    multiply_at(left, stride, packed.ctypes.data, rows, inner, outer, beta, out, out_stride)


@inlined
def multiply_at(
    left: Any,
    stride: int,
    packed: Any,
    rows: int,
    inner: int,
    outer: int,
    beta: float,
    out: Any,
    out_stride: int,
) -> None:
    """The same by the packed matrix's address."""
    sgemm_compute(
        ROW_MAJOR,
        NO_TRANSPOSE,
        PACKED,
        rows,
        outer,
        inner,
        left,
        stride,
        packed,
        outer,
        F32(beta),
        out,
        out_stride,
    )


@inlined
def of_gate(row: Array, gate: int, first: int, last: int) -> Array:
    """What the units `first` to `last` have of a row of four gates."""
    size = len(row) // 4
    return row[gate * size + first : gate * size + last]


@compiled
def lstm_units_forward(
    sums: Array, bias: Array, old: Array, new: Array, out: Array, first: int, last: int
) -> None:
    """Units `first` to `last` of one row: sums W x + U h become i, f, g, o; c and h are filled."""
    a_i, a_f = of_gate(sums, 0, first, last), of_gate(sums, 1, first, last)
    a_g, a_o = of_gate(sums, 2, first, last), of_gate(sums, 3, first, last)
    b_i, b_f = of_gate(bias, 0, first, last), of_gate(bias, 1, first, last)
    b_g, b_o = of_gate(bias, 2, first, last), of_gate(bias, 3, first, last)
    old, new, out = old[first:last], new[first:last], out[first:last]
    for k in range(last - first):
        i, f = sigmoid(a_i[k] + b_i[k]), sigmoid(a_f[k] + b_f[k])
        g, o = tanh(a_g[k] + b_g[k]), sigmoid(a_o[k] + b_o[k])
        a_i[k] = i
        a_f[k] = f
        a_g[k] = g
        a_o[k] = o
        memory = f * old[k] + i * g
        new[k] = memory
        out[k] = o * tanh(memory)


@compiled
def lstm_units_backward(
    gates: Array,
    memories: Array,
    flowing: Array,
    d: Array,
    to_bias: Array,
    first: int,
    last: int,
) -> None:
    """Units `first` to `last` of one row: from the gradients of output, h and c to those of the
    gates' sums `d`, of the bias (added) and of the c before; that of h is left at zero."""
    old, new = memories[0][first:last], memories[1][first:last]
    dy, dh, dc = flowing[0][first:last], flowing[1][first:last], flowing[2][first:last]
    a_i, a_f = of_gate(gates, 0, first, last), of_gate(gates, 1, first, last)
    a_g, a_o = of_gate(gates, 2, first, last), of_gate(gates, 3, first, last)
    d_i, d_f = of_gate(d, 0, first, last), of_gate(d, 1, first, last)
    d_g, d_o = of_gate(d, 2, first, last), of_gate(d, 3, first, last)
    for k in range(last - first):
        i, f, g, o = a_i[k], a_f[k], a_g[k], a_o[k]
        shown = tanh(new[k])
        grad_h = dy[k] + dh[k]
        grad_c = dc[k] + grad_h * o * (F32(1.0) - shown * shown)
        d_i[k] = grad_c * g * i * (F32(1.0) - i)
        d_f[k] = grad_c * old[k] * f * (F32(1.0) - f)
        d_g[k] = grad_c * i * (F32(1.0) - g * g)
        d_o[k] = grad_h * shown * o * (F32(1.0) - o)
        dc[k] = grad_c * f
        dh[k] = F32(0.0)
    for gate in range(4):
        own, added = of_gate(d, gate, first, last), of_gate(to_bias, gate, first, last)
        for k in range(last - first):
            added[k] += own[k]


@compiled
def lstm_forward(
    lengths_B: Array,
    x: Array,
    W: Array,
    U: Array,
    bias: Array,
    gates: Array,
    h: Array,
    c: Array,
    first: int,
    last: int,
) -> None:
    """`gates` leave as i, f, g, o; h and c are filled from step 1 on.

    Where x has no columns, `gates` come as W x.
    """
    set_threads(1)
    num_steps, _, size = c.shape
    rows, width, num_inputs = last - first, 4 * size, x.shape[2]
    for t in range(num_steps - 1):
        sums = address(gates, t, first)
        if num_inputs:
            multiply(address(x, t, first), num_inputs, W, rows, num_inputs, width, 0.0, sums, width)
        multiply(address(h, t, first), size, U, rows, size, width, 1.0, sums, width)
        for b in range(first, last):
            if t >= lengths_B[b]:
                h[t + 1, b] = h[t, b]
                c[t + 1, b] = c[t, b]
                continue
            lstm_units_forward(gates[t, b], bias[0, 0], c[t, b], c[t + 1, b], h[t + 1, b], 0, size)
    set_threads(0)


@compiled
def lstm_backward(
    lengths_B: Array,
    W: Array,
    U: Array,
    gates: Array,
    x: Array,
    h: Array,
    c: Array,
    to_outputs: Array,
    to_gates: Array,
    entered: Array,
    to_weights: Array,
    to_h: Array,
    to_c: Array,
    to_bias: Array,
    to_x: Array,
    first: int,
    last: int,
) -> None:
    """What these rows give to the gradients of x (if `to_x` has columns) and of the bias (float64,
    added); to_h and to_c (1, B, H) come for the last step and leave for the first.

    Where `entered` (1, C B, I + H) has rows, the matrices' gradients are computed here, C steps at
    a time, while these are in the cache: `to_weights` is that of W and U side by side, `to_gates`
    (1, C B, G) and `entered` are scratch, and each part has its own. Elsewhere `to_gates`
    (1, T B, G) is filled with the gradients of the gates' sums, for others to do this.
    """
    set_threads(1)
    num_steps, batch_size, size = to_outputs.shape
    rows, width, num_inputs, num_entered = last - first, 4 * size, to_x.shape[2], entered.shape[2]
    chunk = entered.shape[1] // batch_size
    for back in range(num_steps):
        t = num_steps - 1 - back
        start = first * chunk + t % chunk * rows if chunk else t * batch_size + first
        for b in range(first, last):
            d = to_gates[0, start + b - first]
            if chunk:
                e = entered[0, start + b - first]
                e[: num_entered - size] = x[t, b]
                e[num_entered - size :] = h[t, b]
            if t >= lengths_B[b]:
                d[:] = F32(0.0)
                continue
            memories = c[t, b], c[t + 1, b]
            flowing = to_outputs[t, b], to_h[0, b], to_c[0, b]
            lstm_units_backward(gates[t, b], memories, flowing, d, to_bias, 0, size)
        left = address(to_gates, 0, start)
        multiply(left, width, U, rows, width, size, 1.0, address(to_h, 0, first), size)
        if num_inputs:
            out = address(to_x, t, first)
            multiply(left, width, W, rows, width, num_inputs, 0.0, out, num_inputs)
        if chunk and t % chunk == 0:
            sgemm_compute(
                ROW_MAJOR,
                TRANSPOSE,
                NO_TRANSPOSE,
                width,
                num_entered,
                min(chunk, num_steps - t) * rows,
                address(to_gates, 0, first * chunk),
                width,
                address(entered, 0, first * chunk),
                num_entered,
                F32(0.0) if t + chunk >= num_steps else F32(1.0),
                to_weights.ctypes.data,
                num_entered,
            )
    set_threads(0)


@compiled
def lstm_forward_by_units(
    lengths_B: Array,
    U: Array,
    edges: Array,
    bias: Array,
    gates: Array,
    h: Array,
    c: Array,
) -> None:
    """The whole batch by all threads, each with its units of every step, where they then meet.

    `U` has the address of each part's packed rows of each gate, `edges` where the parts' units
    begin; `gates` come as W x. Every other step reads the gates the other way round: what was read
    last is still in the cache.
    """
    set_threads(1)
    num_steps, batch_size, size = c.shape
    for t in range(num_steps - 1):
        for part in range(thread_number(), len(edges) - 1, team_size()):
            first, last = edges[part], edges[part + 1]
            for turn in range(4):
                gate = turn if t % 2 == 0 else 3 - turn
                out = address(gates, t, 0) + 4 * (gate * size + first)
                multiply_at(
                    address(h, t, 0),
                    size,
                    U[4 * part + gate],
                    batch_size,
                    size,
                    last - first,
                    1.0,
                    out,
                    4 * size,
                )
            for b in range(batch_size):
                if t >= lengths_B[b]:
                    h[t + 1, b, first:last] = h[t, b, first:last]
                    c[t + 1, b, first:last] = c[t, b, first:last]
                    continue
                lstm_units_forward(
                    gates[t, b], bias, c[t, b], c[t + 1, b], h[t + 1, b], first, last
                )
        barrier()
    set_threads(0)


@compiled
def lstm_backward_by_units(
    lengths_B: Array,
    U: Array,
    edges: Array,
    gates: Array,
    c: Array,
    to_outputs: Array,
    to_gates: Array,
    to_h: Array,
    to_c: Array,
    to_bias: Array,
) -> None:
    """The same backwards: `to_gates` (T, B, G) is filled, the rest as in `lstm_backward`. `U` has
    the address of each part's packed columns of each gate."""
    set_threads(1)
    num_steps, batch_size, size = to_outputs.shape
    for back in range(num_steps):
        t = num_steps - 1 - back
        for part in range(thread_number(), len(edges) - 1, team_size()):
            first, last = edges[part], edges[part + 1]
            for b in range(batch_size):
                d = to_gates[t, b]
                if t >= lengths_B[b]:
                    for gate in range(4):
                        of_gate(d, gate, first, last)[:] = F32(0.0)
                    continue
                memories = c[t, b], c[t + 1, b]
                flowing = to_outputs[t, b], to_h[0, b], to_c[0, b]
                lstm_units_backward(gates[t, b], memories, flowing, d, to_bias, first, last)
        barrier()
        for part in range(thread_number(), len(edges) - 1, team_size()):
            first, last = edges[part], edges[part + 1]
            for turn in range(4):
                gate = turn if t % 2 == 0 else 3 - turn
                multiply_at(
                    address(to_gates, t, 0) + 4 * gate * size,
                    4 * size,
                    U[4 * part + gate],
                    batch_size,
                    size,
                    last - first,
                    1.0,
                    address(to_h, 0, 0) + 4 * first,
                    size,
                )
    set_threads(0)
