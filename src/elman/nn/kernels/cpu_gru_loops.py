"""Time loops of both GRUs compiled by numba, forward and backward, for some rows of a batch.

Arrays, rows, lengths and packed matrices are as in `cpu_loops.py`.

T time steps, B batch, H hidden units, G gates times H.
"""

from __future__ import annotations

from elman.nn.kernels.cpu_loops import address, multiply, row_address
from elman.nn.kernels.loops import F32, sigmoid, tanh
from elman.nn.kernels.mkl import set_threads
from elman.nn.kernels.team import Floats1, Floats2, Floats3, Int64s, Packed, pooled_loop


@pooled_loop
def gru_after_forward(
    lengths_B: Int64s,
    gates: Floats3,
    U: Packed,
    inner_bias: Floats1,
    h: Floats3,
    inner: Floats3,
    scratch: Floats2,
    first: int,
    last: int,
) -> None:
    """Reset after the product. Turn `gates` from W x + b into r, u, n; fill h, and `inner` with
    U_n h + d. `scratch` is (B, 3 H).
    """
    set_threads(1)
    num_steps, _, size = inner.shape
    rows, width = last - first, 3 * size
    for t in range(num_steps):
        sums = row_address(scratch, first)
        multiply(address(h, t, first), size, U, rows, size, width, 0.0, sums, width)
        for b in range(first, last):
            if t >= lengths_B[b]:
                h[t + 1, b] = h[t, b]
                continue
            a, s, q, old, new = gates[t, b], scratch[b], inner[t, b], h[t, b], h[t + 1, b]
            for k in range(size):
                r, u = sigmoid(a[k] + s[k]), sigmoid(a[size + k] + s[size + k])
                q[k] = s[2 * size + k] + inner_bias[k]
                n = tanh(a[2 * size + k] + r * q[k])
                a[k] = r
                a[size + k] = u
                a[2 * size + k] = n
                new[k] = old[k] + u * (n - old[k])
    set_threads(0)


@pooled_loop
def gru_after_backward(
    lengths_B: Int64s,
    gates: Floats3,
    U: Packed,
    h: Floats3,
    inner: Floats3,
    to_outputs: Floats3,
    to_gates: Floats3,
    to_h: Floats2,
    first: int,
    last: int,
) -> None:
    """Fill `to_gates` (T, B, 4 H) with the gradients of n, r, u and `inner`, in this order: the
    first three are those of W x, the last three those of U h.
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
            a, q, old, dy, dh = gates[t, b], inner[t, b], h[t, b], to_outputs[t, b], to_h[b]
            for k in range(size):
                r, u, n = a[k], a[size + k], a[2 * size + k]
                grad = dy[k] + dh[k]
                to_n = grad * u * (F32(1.0) - n * n)
                d[k] = to_n
                d[size + k] = to_n * q[k] * r * (F32(1.0) - r)
                d[2 * size + k] = grad * (n - old[k]) * u * (F32(1.0) - u)
                d[3 * size + k] = to_n * r
                dh[k] = grad * (F32(1.0) - u)
        left = address(to_gates, t, first) + 4 * size
        multiply(left, width, U, rows, 3 * size, size, 1.0, row_address(to_h, first), size)
    set_threads(0)


@pooled_loop
def gru_before_forward(
    lengths_B: Int64s,
    gates: Floats3,
    U_ru: Packed,
    U_n: Packed,
    h: Floats3,
    reset: Floats3,
    first: int,
    last: int,
) -> None:
    """Reset before the product. Turn `gates` from W x + b into r, u, n; fill h, and `reset`
    (T, B, H) with r * h.
    """
    set_threads(1)
    num_steps, _, size = reset.shape
    rows, width = last - first, 3 * size
    for t in range(num_steps):
        sums = address(gates, t, first)
        multiply(address(h, t, first), size, U_ru, rows, size, 2 * size, 1.0, sums, width)
        for b in range(first, last):
            a, old, kept = gates[t, b], h[t, b], reset[t, b]
            for k in range(size):
                a[k] = sigmoid(a[k])
                a[size + k] = sigmoid(a[size + k])
                kept[k] = a[k] * old[k]
        left, out = address(reset, t, first), sums + 8 * size
        multiply(left, size, U_n, rows, size, size, 1.0, out, width)
        for b in range(first, last):
            if t >= lengths_B[b]:
                h[t + 1, b] = h[t, b]
                continue
            a, old, new = gates[t, b], h[t, b], h[t + 1, b]
            for k in range(size):
                a[2 * size + k] = tanh(a[2 * size + k])
                new[k] = old[k] + a[size + k] * (a[2 * size + k] - old[k])
    set_threads(0)


@pooled_loop
def gru_before_backward(
    lengths_B: Int64s,
    gates: Floats3,
    U_ru: Packed,
    U_n: Packed,
    h: Floats3,
    to_outputs: Floats3,
    to_gates: Floats3,
    to_reset: Floats2,
    to_h: Floats2,
    first: int,
    last: int,
) -> None:
    """Fill `to_gates` in the order r, u, n; `to_reset` (B, H) is scratch."""
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
            a, old, dy, dh = gates[t, b], h[t, b], to_outputs[t, b], to_h[b]
            for k in range(size):
                u, n = a[size + k], a[2 * size + k]
                grad = dy[k] + dh[k]
                d[size + k] = grad * (n - old[k]) * u * (F32(1.0) - u)
                d[2 * size + k] = grad * u * (F32(1.0) - n * n)
                dh[k] = grad * (F32(1.0) - u)
        left, out = address(to_gates, t, first), row_address(to_reset, first)
        multiply(left + 8 * size, width, U_n, rows, size, size, 0.0, out, size)
        for b in range(first, last):
            if t >= lengths_B[b]:
                continue
            a, d, old, dr, dh = gates[t, b], to_gates[t, b], h[t, b], to_reset[b], to_h[b]
            for k in range(size):
                d[k] = dr[k] * old[k] * a[k] * (F32(1.0) - a[k])
                dh[k] += dr[k] * a[k]
        multiply(left, width, U_ru, rows, 2 * size, size, 1.0, row_address(to_h, first), size)
    set_threads(0)
