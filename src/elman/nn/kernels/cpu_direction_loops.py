"""Time loops of a small LSTM in both directions at once, compiled by numba, forward and backward.

Each part of the work is a direction of some rows of the batch: with two threads, one direction for
each. A part runs over the steps without meeting others. Its step t reads x_t and the h before it,
side by side in `entered`, so that a step is one product with [W U] side by side. The gradients of W
and U are sums over all steps, made `CHUNK` rows at a time. All products are oneDNN's.

From right to left, a row's padding comes first and leaves the state as it is.

T time steps, B batch, I inputs, H hidden units, K = I + H, N parts, R = T times the rows of a part.
"""

from __future__ import annotations

from typing import Any

from elman.nn.kernels.cpu_loops import (
    address,
    lstm_units_backward,
    lstm_units_forward,
    row_address,
)
from elman.nn.kernels.loops import F32, inlined
from elman.nn.kernels.mkl import brgemm_float32, brgemm_release
from elman.nn.kernels.team import Doubles2, Floats2, Floats3, Int64s, pooled_loop, view

CHUNK = 64
"""Rows of which the gradients of the matrices are summed in one product."""
TURNED = 16
"""Rows that are transposed at once: a cache line of their numbers."""


def kept_size(num_steps: int, num_rows: int, num_inputs: int, size: int) -> int:
    """Numbers that a part of `num_rows` rows keeps for the backward pass (`_kept`)."""
    return (num_steps * num_rows + CHUNK) * (num_inputs + 6 * size) + num_rows * size


@inlined
def _rows_of(part: int, num_parts: int, batch_size: int) -> Any:
    """The direction of a part, its first row and its end."""
    groups = num_parts // 2
    group = part % groups
    return part // groups, batch_size * group // groups, batch_size * (group + 1) // groups


@inlined
def _kept(kept: Any, num_steps: int, rows: int, inner: int, size: int) -> Any:
    """What a part keeps, by row: `entered` (K numbers), the gates i, f, g, o, and the c before a
    step, which has a step more."""
    num_rows, start = num_steps * rows + CHUNK, kept.ctypes.data
    entered = view(start, (num_rows, inner), F32)
    gates = view(start + 4 * num_rows * inner, (num_rows, 4 * size), F32)
    c = view(start + 4 * num_rows * (inner + 4 * size), (num_rows + rows, size), F32)
    return entered, gates, c


@pooled_loop
def lstm_forward(
    lengths_B: Int64s,
    x: Floats3,
    given: Int64s,
    packed: Floats2,
    kept: Floats2,
    after: Floats3,
    outputs: Floats3,
    part: int,
    num_parts: int,
    first: int,
    last: int,
) -> None:
    """Fill `outputs` (T, B, 2 H), zeros in the padding, `after` (4, B, H) with the final h and c of
    both directions, and the rows of `kept`. `given` has the addresses of W, U, bias, h and c of
    both; `packed` (N, K 4 H) is scratch."""
    (num_steps, batch_size, num_inputs), size = x.shape, after.shape[2]
    inner, width = num_inputs + size, 4 * size
    direction, top, bottom = _rows_of(part, num_parts, batch_size)
    rows, mine = bottom - top, given[5 * direction :]
    entered, gates, c = _kept(kept[part], num_steps, rows, inner, size)
    entered[num_steps * rows :] = F32(0.0)
    matrix = view(packed[part].ctypes.data, (inner, width), F32)
    W, U = view(mine[0], (width, num_inputs), F32), view(mine[1], (width, size), F32)
    for n in range(0, width, TURNED):
        for k in range(num_inputs):
            for i in range(TURNED if n + TURNED <= width else width - n):
                matrix[k, n + i] = W[n + i, k]
        for k in range(size):
            for i in range(TURNED if n + TURNED <= width else width - n):
                matrix[num_inputs + k, n + i] = U[n + i, k]
    bias = view(mine[2], (width,), F32)
    first_h = view(mine[3], (batch_size, size), F32)
    first_c = view(mine[4], (batch_size, size), F32)
    for s in range(num_steps):
        t = num_steps - 1 - s if direction else s
        start = s * rows
        for r in range(rows):
            e = entered[start + r]
            e[:num_inputs] = x[t, top + r]
            if s == 0:
                e[num_inputs:] = first_h[top + r]
                c[r] = first_c[top + r]
        brgemm_float32(
            *(rows, width, inner, inner, width, width, 0),
            *(row_address(entered, start), packed[part].ctypes.data, row_address(gates, start), 0),
        )
        for r in range(rows):
            b, old, new = top + r, c[start + r], c[start + rows + r]
            output = outputs[t, b][direction * size : (direction + 1) * size]
            if s == num_steps - 1:
                hidden = after[2 * direction, b][0:]
            else:
                hidden = entered[start + rows + r][num_inputs:]
            if t < lengths_B[b]:
                lstm_units_forward(gates[start + r], bias, old, new, output, 0, size)
                hidden[:] = output
            else:
                new[:] = old
                output[:] = F32(0.0)
                hidden[:] = entered[start + r][num_inputs:]
    for r in range(rows):
        after[2 * direction + 1, top + r] = c[num_steps * rows + r]
    brgemm_release(1)


@pooled_loop
def lstm_backward(
    lengths_B: Int64s,
    matrices: Int64s,
    kept: Floats2,
    to_outputs: Floats3,
    scratch: Floats2,
    to_x: Floats3,
    to_W: Floats3,
    to_U: Floats3,
    to_state: Floats3,
    to_bias: Doubles2,
    part: int,
    num_parts: int,
    first: int,
    last: int,
) -> None:
    """Fill `to_x` (2 T, B, I) by direction, `to_W` (N, 4 H, I) and `to_U` (N, 4 H, H); add to
    `to_bias` (N, 4 H). `to_state` (4, B, H) holds the gradients of the final h and c of both
    directions and receives those of the initial ones. `matrices` has the addresses of W and U of
    both; `scratch` (N, (R + 2 CHUNK) 4 H) is for the gradients of the gates."""
    num_steps, batch_size, _ = to_outputs.shape
    size, num_inputs = to_state.shape[2], to_x.shape[2]
    inner, width = num_inputs + size, 4 * size
    direction, top, bottom = _rows_of(part, num_parts, batch_size)
    rows = bottom - top
    num_rows = num_steps * rows
    entered, gates, c = _kept(kept[part], num_steps, rows, inner, size)
    d = view(scratch[part].ctypes.data, (num_rows + CHUNK, width), F32)
    turned = view(row_address(d, num_rows + CHUNK), (width, CHUNK), F32)
    d[num_rows:] = F32(0.0)
    to_h, to_c = to_state[2 * direction], to_state[2 * direction + 1]
    for back in range(num_steps):
        s = num_steps - 1 - back
        t = num_steps - 1 - s if direction else s
        start = s * rows
        for r in range(rows):
            b = top + r
            if t < lengths_B[b]:
                memories = c[start + r], c[start + rows + r]
                to_output = to_outputs[t, b][direction * size : (direction + 1) * size]
                flowing = to_output, to_h[b], to_c[b]
                own, row = d[start + r], gates[start + r]
                lstm_units_backward(row, memories, flowing, own, to_bias[part], 0, size)
            else:
                d[start + r] = F32(0.0)
        left, to_inputs = row_address(d, start), address(to_x, direction * num_steps + t, top)
        brgemm_float32(
            *(rows, num_inputs, width, width, num_inputs, num_inputs, 0),
            *(left, matrices[2 * direction], to_inputs, 0),
        )
        brgemm_float32(
            *(rows, size, width, width, size, size, 1),
            *(left, matrices[2 * direction + 1], row_address(to_h, top), 0),
        )
    for start in range(0, num_rows, CHUNK):
        for r in range(0, CHUNK, TURNED):
            for n in range(width):
                for i in range(TURNED):
                    turned[n, r + i] = d[start + r + i, n]
        left, right = turned.ctypes.data, row_address(entered, start)
        brgemm_float32(
            *(width, num_inputs, CHUNK, CHUNK, inner, num_inputs, start > 0),
            *(left, right, address(to_W, part, 0), 0),
        )
        brgemm_float32(
            *(width, size, CHUNK, CHUNK, inner, size, start > 0),
            *(left, right + 4 * num_inputs, address(to_U, part, 0), 0),
        )
    brgemm_release(1)
