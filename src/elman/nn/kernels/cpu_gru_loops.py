"""Loops over time compiled by numba: both GRUs, forward and backward, for some rows of a batch.

Arrays, rows, lengths and packed matrices are as in `cpu_loops.py`.

T time steps, B batch, H hidden units, G gates times H.
"""

from __future__ import annotations

from typing import Any

from elman.nn.kernels.cpu_loops import address, multiply
from elman.nn.kernels.loops import F32, compiled, sigmoid, tanh
from elman.nn.kernels.mkl import set_threads

Array = Any


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
