"""Loops over time compiled by numba: LSTM and GRU, forward and backward, for some rows of a batch.

All arrays are float32, time first and contiguous; `states` hold T + 1 steps, the initial one first.
A loop works on the rows from `first` to `last` and leaves the others alone, so that several threads
share a batch without meeting. `lengths_B` says how many steps of a row are real; beyond them its
state stands still and nothing flows back.

U comes packed (`mkl.py`). What the backward loops leave are the gradients of the gates' sums; those
of the matrices are products over all steps at once, which torch does better unless all of it fits
a core's cache.

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
    sgemm_compute(
        ROW_MAJOR,
        NO_TRANSPOSE,
        PACKED,
        rows,
        outer,
        inner,
        left,
        stride,
        packed.ctypes.data,
        outer,
        F32(beta),
        out,
        out_stride,
    )


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
            a, old, new, out, shift = gates[t, b], c[t, b], c[t + 1, b], h[t + 1, b], bias[0, 0]
            for k in range(size):
                i, f = sigmoid(a[k] + shift[k]), sigmoid(a[size + k] + shift[size + k])
                g = tanh(a[2 * size + k] + shift[2 * size + k])
                o = sigmoid(a[3 * size + k] + shift[3 * size + k])
                a[k] = i
                a[size + k] = f
                a[2 * size + k] = g
                a[3 * size + k] = o
                memory = f * old[k] + i * g
                new[k] = memory
                out[k] = o * tanh(memory)
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
            a, old, new = gates[t, b], c[t, b], c[t + 1, b]
            dy, dh, dc = to_outputs[t, b], to_h[0, b], to_c[0, b]
            for k in range(size):
                i, f, g, o = a[k], a[size + k], a[2 * size + k], a[3 * size + k]
                shown = tanh(new[k])
                grad_h = dy[k] + dh[k]
                grad_c = dc[k] + grad_h * o * (F32(1.0) - shown * shown)
                d[k] = grad_c * g * i * (F32(1.0) - i)
                d[size + k] = grad_c * old[k] * f * (F32(1.0) - f)
                d[2 * size + k] = grad_c * i * (F32(1.0) - g * g)
                d[3 * size + k] = grad_h * shown * o * (F32(1.0) - o)
                dc[k] = grad_c * f
                dh[k] = F32(0.0)
            for k in range(width):
                to_bias[k] += d[k]
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
def gru_after_forward(
    lengths_B: Array,
    gates: Array,
    U: Array,
    inner_bias: Array,
    h: Array,
    inner: Array,
    scratch: Array,
    first: int,
    last: int,
) -> None:
    """Reset after the product. `gates` come as W x + b and leave as r, u, n; h is filled, and
    `inner` with U_n h + d. `scratch` is (1, B, 3 H).
    """
    set_threads(1)
    num_steps, _, size = inner.shape
    rows, width = last - first, 3 * size
    for t in range(num_steps):
        multiply(
            address(h, t, first), size, U, rows, size, width, 0.0, address(scratch, 0, first), width
        )
        for b in range(first, last):
            if t >= lengths_B[b]:
                h[t + 1, b] = h[t, b]
                continue
            a, s, q, old, new = gates[t, b], scratch[0, b], inner[t, b], h[t, b], h[t + 1, b]
            for k in range(size):
                r, u = sigmoid(a[k] + s[k]), sigmoid(a[size + k] + s[size + k])
                q[k] = s[2 * size + k] + inner_bias[k]
                n = tanh(a[2 * size + k] + r * q[k])
                a[k] = r
                a[size + k] = u
                a[2 * size + k] = n
                new[k] = old[k] + u * (n - old[k])
    set_threads(0)


@compiled
def gru_after_backward(
    lengths_B: Array,
    gates: Array,
    U: Array,
    h: Array,
    inner: Array,
    to_outputs: Array,
    to_gates: Array,
    to_h: Array,
    first: int,
    last: int,
) -> None:
    """`to_gates` (T, B, 4 H) is filled with the gradients of n, r, u and `inner`, in this order:
    the first three are those of W x, the last three those of U h, each side by side.
    """
    set_threads(1)
    num_steps, _, size = inner.shape
    rows, width = last - first, 4 * size
    for back in range(num_steps):
        t = num_steps - 1 - back
        for b in range(first, last):
            d = to_gates[t, b]
            if t >= lengths_B[b]:
                d[:] = F32(0.0)
                continue
            a, q, old, dy, dh = gates[t, b], inner[t, b], h[t, b], to_outputs[t, b], to_h[0, b]
            for k in range(size):
                r, u, n = a[k], a[size + k], a[2 * size + k]
                grad = dy[k] + dh[k]
                to_n = grad * u * (F32(1.0) - n * n)
                d[k] = to_n
                d[size + k] = to_n * q[k] * r * (F32(1.0) - r)
                d[2 * size + k] = grad * (n - old[k]) * u * (F32(1.0) - u)
                d[3 * size + k] = to_n * r
                dh[k] = grad * (F32(1.0) - u)
        multiply(
            address(to_gates, t, first) + 4 * size,
            width,
            U,
            rows,
            3 * size,
            size,
            1.0,
            address(to_h, 0, first),
            size,
        )
    set_threads(0)


@compiled
def gru_before_forward(
    lengths_B: Array,
    gates: Array,
    U_ru: Array,
    U_n: Array,
    h: Array,
    reset: Array,
    first: int,
    last: int,
) -> None:
    """Reset before the product. `gates` come as W x + b and leave as r, u, n; h is filled, and
    `reset` (T, B, H) with r * h.
    """
    set_threads(1)
    num_steps, _, size = reset.shape
    rows, width = last - first, 3 * size
    for t in range(num_steps):
        multiply(
            address(h, t, first),
            size,
            U_ru,
            rows,
            size,
            2 * size,
            1.0,
            address(gates, t, first),
            width,
        )
        for b in range(first, last):
            a, old, kept = gates[t, b], h[t, b], reset[t, b]
            for k in range(size):
                a[k] = sigmoid(a[k])
                a[size + k] = sigmoid(a[size + k])
                kept[k] = a[k] * old[k]
        multiply(
            address(reset, t, first),
            size,
            U_n,
            rows,
            size,
            size,
            1.0,
            address(gates, t, first) + 8 * size,
            width,
        )
        for b in range(first, last):
            if t >= lengths_B[b]:
                h[t + 1, b] = h[t, b]
                continue
            a, old, new = gates[t, b], h[t, b], h[t + 1, b]
            for k in range(size):
                a[2 * size + k] = tanh(a[2 * size + k])
                new[k] = old[k] + a[size + k] * (a[2 * size + k] - old[k])
    set_threads(0)


@compiled
def gru_before_backward(
    lengths_B: Array,
    gates: Array,
    U_ru: Array,
    U_n: Array,
    h: Array,
    to_outputs: Array,
    to_gates: Array,
    to_reset: Array,
    to_h: Array,
    first: int,
    last: int,
) -> None:
    """`to_gates` is filled in the order r, u, n; `to_reset` is scratch (1, B, H)."""
    set_threads(1)
    num_steps, _, size = to_outputs.shape
    rows, width = last - first, 3 * size
    for back in range(num_steps):
        t = num_steps - 1 - back
        for b in range(first, last):
            d = to_gates[t, b]
            if t >= lengths_B[b]:
                d[:] = F32(0.0)
                continue
            a, old, dy, dh = gates[t, b], h[t, b], to_outputs[t, b], to_h[0, b]
            for k in range(size):
                u, n = a[size + k], a[2 * size + k]
                grad = dy[k] + dh[k]
                d[size + k] = grad * (n - old[k]) * u * (F32(1.0) - u)
                d[2 * size + k] = grad * u * (F32(1.0) - n * n)
                dh[k] = grad * (F32(1.0) - u)
        multiply(
            address(to_gates, t, first) + 8 * size,
            width,
            U_n,
            rows,
            size,
            size,
            0.0,
            address(to_reset, 0, first),
            size,
        )
        for b in range(first, last):
            if t >= lengths_B[b]:
                continue
            a, d, old, dr, dh = gates[t, b], to_gates[t, b], h[t, b], to_reset[0, b], to_h[0, b]
            for k in range(size):
                d[k] = dr[k] * old[k] * a[k] * (F32(1.0) - a[k])
                dh[k] += dr[k] * a[k]
        multiply(
            address(to_gates, t, first),
            width,
            U_ru,
            rows,
            2 * size,
            size,
            1.0,
            address(to_h, 0, first),
            size,
        )
    set_threads(0)
