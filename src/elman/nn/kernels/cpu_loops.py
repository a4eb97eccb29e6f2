"""Time loops of the LSTM compiled by numba, forward and backward, and what the GRU's loops share.

All arrays are float32, time first and contiguous; h and c hold T + 1 steps, the initial state
first. Loops that take `first` and `last` work on those rows of the batch, so that threads never
wait for each other. Those called `by_units` work on the whole batch: each thread computes some of
the hidden units, and the threads meet at every step. `lengths_B` is the number of real steps of
each row; beyond it the state does not change and no gradient flows.

Recurrent matrices come packed, for MKL or (in panels: `blocks.py`) for oneDNN. The backward loops
compute the gradients of the gates' pre-activations. Gradients of the matrices are products over all
steps, which torch does, unless everything fits a core's cache (see `lstm_backward`). The GRU's
loops are in `cpu_gru_loops.py`.

T time steps, B batch, I inputs, H hidden units, G gates times H.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from elman.nn.kernels.blocks import panel_width
from elman.nn.kernels.loops import F32, Array, compiled, inlined, sigmoid, tanh
from elman.nn.kernels.mkl import (
    NO_TRANSPOSE,
    PACK_B,
    PACKED,
    ROW_MAJOR,
    TRANSPOSE,
    brgemm_float32,
    set_threads,
    sgemm_compute,
    sgemm_pack,
)
from elman.nn.kernels.team import (
    Doubles2,
    Floats1,
    Floats2,
    Floats3,
    Int64s,
    Packed,
    Records,
    barrier,
    pooled_loop,
    team_size,
    thread_number,
    view,
)

PACK_ORDER = Records(
    *("matrix", "stride", "target", "transposed", "rows", "outer", "inner", "in_panels")
)
PackOrders = Annotated[Any, PACK_ORDER]
"""Matrices to pack: address, row length and target address; whether to transpose; the rows that it
will be multiplied with; its columns and rows after transposing; whether oneDNN multiplies."""
STEPS_AHEAD = 8
"""Steps whose W x is computed at once inside a loop: a part of W is read once for all of them."""
HEADER_BYTES = 64
"""Before each packed matrix; its first number says whether it is in panels."""


@pooled_loop
def pack(orders: PackOrders, first: int, last: int) -> None:
    """Pack matrices for products in the threads that will compute them."""
    set_threads(1)  # as the products will be computed
    for i in range(first, last):
        order = orders[i]
        view(order.target - HEADER_BYTES, (1,), np.int64)[0] = order.in_panels
        if order.in_panels:
            pack_panels(order)
            continue
        sgemm_pack(
            ROW_MAJOR,
            PACK_B,
            TRANSPOSE if order.transposed else NO_TRANSPOSE,
            order.rows,
            order.outer,
            order.inner,
            F32(1.0),
            order.matrix,
            order.stride,
            order.target,
        )
    set_threads(0)


@compiled
def pack_panels(order: Any) -> None:
    """Cut a matrix into panels of some columns, each contiguous."""
    inner, outer, stride = order.inner, order.outer, order.stride
    width = panel_width(2 * inner)
    for first in range(0, outer, width):
        own = min(width, outer - first)
        panel = view(order.target + 4 * first * inner, (inner, own), np.float32)
        if order.transposed:
            columns = view(order.matrix + 4 * first * stride, (own, stride), np.float32)
            for k in range(inner):
                for n in range(own):
                    panel[k, n] = columns[n, k]
        else:
            rows = view(order.matrix + 4 * first, (inner, stride), np.float32)
            for k in range(inner):
                for n in range(own):
                    panel[k, n] = rows[k, n]


@inlined
def address(array: Array, time: int, row: int) -> Any:
    """Address of a row of a step of an array (T, B, N)."""
    return array.ctypes.data + 4 * (time * array.shape[1] + row) * array.shape[2]


@inlined
def row_address(array: Array, row: int) -> Any:
    """Address of a row of an array (B, N)."""
    return array.ctypes.data + 4 * row * array.shape[1]


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
    """The same, given the packed matrix's address."""
    if view(packed - HEADER_BYTES, (1,), np.int64)[0]:
        width = panel_width(2 * inner)
        for first in range(0, outer, width):
            own = min(width, outer - first)
            brgemm_float32(
                *(rows, own, inner, stride, own, out_stride, beta != 0.0),
                *(left, packed + 4 * first * inner, out + 4 * first, 0),
            )
    else:
        sgemm_compute(
            *(ROW_MAJOR, NO_TRANSPOSE, PACKED, rows, outer, inner, left, stride, packed, outer),
            *(F32(beta), out, out_stride),
        )


@inlined
def multiply_steps(
    left: Any,
    packed: Any,
    steps: int,
    rows: int,
    batch_size: int,
    inner: int,
    outer: int,
    out: Any,
    out_stride: int,
) -> None:
    """out = left times a packed matrix for some rows of each of some steps, a panel of the matrix
    after the other. Steps of `left` and `out` are `batch_size` rows apart."""
    times, apart = steps, batch_size
    if rows == batch_size:  # all steps lie one behind the other
        rows, times = rows * steps, 1
    if view(packed - HEADER_BYTES, (1,), np.int64)[0]:
        width = panel_width(2 * inner)
        for first in range(0, outer, width):
            own = min(width, outer - first)
            for t in range(times):
                at, result = left + 4 * t * apart * inner, out + 4 * t * apart * out_stride
                brgemm_float32(
                    *(rows, own, inner, inner, own, out_stride, 0),
                    *(at, packed + 4 * first * inner, result + 4 * first, 0),
                )
    else:
        for t in range(times):
            at, result = left + 4 * t * apart * inner, out + 4 * t * apart * out_stride
            multiply_at(at, inner, packed, rows, inner, outer, 0.0, result, out_stride)


@inlined
def of_gate(row: Array, gate: int, first: int, last: int) -> Array:
    """Units `first` to `last` of one gate, of a row of four gates."""
    size = len(row) // 4
    return row[gate * size + first : gate * size + last]


@compiled
def lstm_units_forward(
    sums: Array, bias: Array, old: Array, new: Array, out: Array, first: int, last: int
) -> None:
    """Units `first` to `last` of one row: turn sums W x + U h into i, f, g, o; fill c and h."""
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
    """Units `first` to `last` of one row: from the gradients of output, h and c compute those of
    the gates' sums `d`, of the bias (added) and of the previous c; set that of h to zero."""
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


@pooled_loop
def lstm_forward(
    lengths_B: Int64s,
    x: Floats3,
    W: Packed,
    U: Packed,
    bias: Floats1,
    gates: Floats3,
    h: Floats3,
    c: Floats3,
    first: int,
    last: int,
) -> None:
    """Fill `gates` with i, f, g, o, and h and c from step 1 on.

    Where x has no columns, `gates` already hold W x. Where nothing is kept for gradients, `gates`
    has fewer steps and c two, which are used again and again.
    """
    set_threads(1)
    num_steps, batch_size, size = h.shape
    rows, width, num_inputs = last - first, 4 * size, x.shape[2]
    for t in range(num_steps - 1):
        now, old, new = t % len(gates), t % len(c), (t + 1) % len(c)
        sums = address(gates, now, first)
        if num_inputs and t % STEPS_AHEAD == 0:
            steps, left = min(num_steps - 1 - t, STEPS_AHEAD), address(x, t, first)
            matrix = W.ctypes.data
            multiply_steps(left, matrix, steps, rows, batch_size, num_inputs, width, sums, width)
        multiply(address(h, t, first), size, U, rows, size, width, 1.0, sums, width)
        for b in range(first, last):
            if t >= lengths_B[b]:
                h[t + 1, b] = h[t, b]
                c[new, b] = c[old, b]
                continue
            lstm_units_forward(gates[now, b], bias, c[old, b], c[new, b], h[t + 1, b], 0, size)
    set_threads(0)


@pooled_loop
def lstm_backward(
    lengths_B: Int64s,
    W: Packed,
    U: Packed,
    gates: Floats3,
    x: Floats3,
    h: Floats3,
    c: Floats3,
    to_outputs: Floats3,
    to_gates: Floats2,
    entered: Floats2,
    to_weights: Floats3,
    to_h: Floats2,
    to_c: Floats2,
    to_bias: Doubles2,
    to_x: Floats3,
    part: int,
    first: int,
    last: int,
) -> None:
    """Compute the gradients of x (if `to_x` has columns) and of the bias (`to_bias` of this part,
    float64, added). `to_h` and `to_c` (B, H) hold the gradients of the final state and receive
    those of the initial one.

    Where `entered` (C B, I + H) has rows, the matrices' gradients are computed here, C steps at a
    time, while the operands are in the cache: `to_weights` of this part receives that of W and U
    side by side; `to_gates` (C B, G) and `entered` are scratch. Otherwise `to_gates` (T B, G)
    receives the gradients of the gates' sums, and the caller multiplies.
    """
    set_threads(1)
    num_steps, batch_size, size = to_outputs.shape
    rows, width, num_inputs, num_entered = last - first, 4 * size, to_x.shape[2], entered.shape[1]
    chunk = len(entered) // batch_size
    for back in range(num_steps):
        t = num_steps - 1 - back
        start = first * chunk + t % chunk * rows if chunk else t * batch_size + first
        for b in range(first, last):
            d = to_gates[start + b - first]
            if chunk:
                e = entered[start + b - first]
                e[: num_entered - size] = x[t, b]
                e[num_entered - size :] = h[t, b]
            if t >= lengths_B[b]:
                d[:] = F32(0.0)
                continue
            memories = c[t, b], c[t + 1, b]
            flowing = to_outputs[t, b], to_h[b], to_c[b]
            lstm_units_backward(gates[t, b], memories, flowing, d, to_bias[part], 0, size)
        left = row_address(to_gates, start)
        multiply(left, width, U, rows, width, size, 1.0, row_address(to_h, first), size)
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
                row_address(to_gates, first * chunk),
                width,
                row_address(entered, first * chunk),
                num_entered,
                F32(0.0) if t + chunk >= num_steps else F32(1.0),
                address(to_weights, part, 0),
                num_entered,
            )
    set_threads(0)


@pooled_loop
def lstm_forward_by_units(
    lengths_B: Int64s,
    W: Int64s,
    U: Int64s,
    edges: Int64s,
    bias: Floats1,
    x: Floats3,
    gates: Floats3,
    h: Floats3,
    c: Floats3,
) -> None:
    """The whole batch, the units divided over the threads, which meet at every step.

    `W` and `U` have the addresses of each part's packed rows of each gate, `edges` the first unit
    of each part; x, `gates` and c are as in `lstm_forward`. Every other step multiplies the gates
    in reverse order: the matrix read last is still in the cache.
    """
    set_threads(1)
    num_steps, batch_size, size = h.shape
    num_inputs = x.shape[2]
    for t in range(num_steps - 1):
        now, old, new = t % len(gates), t % len(c), (t + 1) % len(c)
        for part in range(thread_number(), len(edges) - 1, team_size()):
            first, last = edges[part], edges[part + 1]
            own, left = last - first, address(h, t, 0)
            for gate in range(4 if num_inputs and t % STEPS_AHEAD == 0 else 0):
                out = address(gates, now, 0) + 4 * (gate * size + first)
                steps, rows, at = min(num_steps - 1 - t, STEPS_AHEAD), batch_size, address(x, t, 0)
                matrix = W[4 * part + gate]
                multiply_steps(at, matrix, steps, rows, rows, num_inputs, own, out, 4 * size)
            for turn in range(4):
                gate = turn if t % 2 == 0 else 3 - turn
                out = address(gates, now, 0) + 4 * (gate * size + first)
                matrix = U[4 * part + gate]
                multiply_at(left, size, matrix, batch_size, size, own, 1.0, out, 4 * size)
            for b in range(batch_size):
                if t >= lengths_B[b]:
                    h[t + 1, b, first:last] = h[t, b, first:last]
                    c[new, b, first:last] = c[old, b, first:last]
                    continue
                new_c, new_h = c[new, b], h[t + 1, b]
                lstm_units_forward(gates[now, b], bias, c[old, b], new_c, new_h, first, last)
        barrier()
    set_threads(0)


@pooled_loop
def lstm_backward_by_units(
    lengths_B: Int64s,
    U: Int64s,
    edges: Int64s,
    gates: Floats3,
    c: Floats3,
    to_outputs: Floats3,
    to_gates: Floats3,
    to_h: Floats2,
    to_c: Floats2,
    to_bias: Doubles2,
) -> None:
    """The same backward: fill `to_gates` (T, B, G), the rest as in `lstm_backward`. `U` has the
    address of each part's packed columns of each gate."""
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
                flowing = to_outputs[t, b], to_h[b], to_c[b]
                lstm_units_backward(gates[t, b], memories, flowing, d, to_bias[0], first, last)
        barrier()
        for part in range(thread_number(), len(edges) - 1, team_size()):
            first, last = edges[part], edges[part + 1]
            own, out = last - first, row_address(to_h, 0) + 4 * first
            for turn in range(4):
                gate = turn if t % 2 == 0 else 3 - turn
                left = address(to_gates, t, 0) + 4 * gate * size
                matrix = U[4 * part + gate]
                multiply_at(left, 4 * size, matrix, batch_size, size, own, 1.0, out, size)
    set_threads(0)
