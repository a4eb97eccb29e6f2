"""Time loops of a small LSTM in both directions at once, compiled by numba, forward and backward.

Each part of the work is a direction of some rows of the batch: with two threads, one direction for
each. A part runs over the steps without meeting others. Its step t reads x_t, the h before it and a
1, side by side in `entered`, so that a step is one product with [W U b] side by side for each gate.
The numbers of a gate lie row by row in an array of its own: the gates of all rows of a step are one
loop then, which takes half the time, and in the backward pass a sixth, of a loop for each row. The
gradients of W and U are sums over all steps, made `CHUNK` rows at a time. All products are
oneDNN's.

From right to left, a row's padding comes first and leaves the state as it is.

T time steps, B batch, I inputs, H hidden units, K = I + H + 1, N parts, R = T times the rows of a
part.
"""

from __future__ import annotations

from typing import Any

from elman.nn.kernels.cpu_loops import address, row_address
from elman.nn.kernels.loops import F32, Array, compiled, inlined, sigmoid, tanh
from elman.nn.kernels.mkl import brgemm_float32, brgemm_release
from elman.nn.kernels.team import Doubles2, Floats2, Floats3, Int64s, pooled_loop, view

CHUNK = 64
"""Rows of which the gradients of the matrices are summed in one product, at most."""
TURNED = 16
"""Rows that are transposed at once: a cache line of their numbers. Products are of multiples of it,
since oneDNN generates code for each new number."""


def kept_size(num_steps: int, num_rows: int, num_inputs: int, size: int) -> int:
    """Numbers that a part of `num_rows` rows keeps for the backward pass (`_kept`)."""
    return (num_steps * num_rows + CHUNK) * (num_inputs + 1 + 6 * size) + num_rows * size


def packed_size(num_inputs: int, size: int) -> int:
    """Numbers of [W U b] of a direction."""
    return (num_inputs + size + 1) * 4 * size


@inlined
def _rows_of(part: int, num_parts: int, batch_size: int) -> Any:
    """The direction of a part, its first row and its end."""
    groups = num_parts // 2
    group = part % groups
    return part // groups, batch_size * group // groups, batch_size * (group + 1) // groups


@inlined
def _kept(kept: Any, num_steps: int, rows: int, inner: int, size: int) -> Any:
    """What a part keeps, by row: `entered` (K numbers), the gates (i of all rows, then f, g and o),
    and the c before a step, which has a step more."""
    num_rows, start = num_steps * rows + CHUNK, kept.ctypes.data
    entered = view(start, (num_rows, inner), F32)
    gates = view(start + 4 * num_rows * inner, (4 * num_rows, size), F32)
    c = view(start + 4 * num_rows * (inner + 4 * size), (num_rows + rows, size), F32)
    return entered, gates, c


@inlined
def _flat(rows: Array, begin: int, end: int) -> Array:
    """Some rows of an array, one behind the other."""
    return view(row_address(rows, begin), ((end - begin) * rows.shape[1],), F32)


@inlined
def _of_gates(rows: Array, begin: int, end: int) -> Any:
    """The same rows of each of four gates, one gate below the other."""
    apart = len(rows) // 4
    i, f = _flat(rows, begin, end), _flat(rows, apart + begin, apart + end)
    g, o = (
        _flat(rows, 2 * apart + begin, 2 * apart + end),
        _flat(rows, 3 * apart + begin, 3 * apart + end),
    )
    return i, f, g, o


@inlined
def _copy(source: Array, target: Array, number: int) -> None:
    """The first numbers of an array into another: several times as fast as assigning a slice."""
    for k in range(number):
        target[k] = source[k]


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
    inner, width = num_inputs + size + 1, 4 * size
    direction, top, bottom = _rows_of(part, num_parts, batch_size)
    rows, mine = bottom - top, given[5 * direction :]
    entered, gates, c = _kept(kept[part], num_steps, rows, inner, size)
    apart = len(entered)
    entered[num_steps * rows :] = F32(0.0)
    W, U = view(mine[0], (width, num_inputs), F32), view(mine[1], (width, size), F32)
    matrix, bias = (
        view(packed[part].ctypes.data, (4 * inner, size), F32),
        view(mine[2], (width,), F32),
    )
    for gate in range(4):
        of_gate = matrix[gate * inner : (gate + 1) * inner]
        for n in range(0, size, TURNED):
            many, row = min(TURNED, size - n), gate * size + n
            for k in range(num_inputs):
                for i in range(many):
                    of_gate[k, n + i] = W[row + i, k]
            for k in range(size):
                for i in range(many):
                    of_gate[num_inputs + k, n + i] = U[row + i, k]
        _copy(bias[gate * size :], of_gate[inner - 1], size)
    h = after[2 * direction]  # after the last step
    h[top:bottom] = view(mine[3], (batch_size, size), F32)[top:bottom]
    c[:rows] = view(mine[4], (batch_size, size), F32)[top:bottom]
    for s in range(num_steps):
        t = num_steps - 1 - s if direction else s
        start = s * rows
        for r in range(rows):
            e = entered[start + r]
            _copy(x[t, top + r], e, num_inputs)
            _copy(h[top + r], e[num_inputs:], size)
            e[inner - 1] = F32(1.0)
        for gate in range(4):
            right, out = row_address(matrix, gate * inner), row_address(gates, gate * apart + start)
            brgemm_float32(
                *(rows, size, inner, inner, size, size, 0),
                *(row_address(entered, start), right, out, 0),
            )
        begin = 0
        while begin < rows:
            end = begin
            while end < rows and t < lengths_B[top + end]:
                end += 1
            new = _flat(c, start + rows + begin, start + rows + end)
            old, own_h = _flat(c, start + begin, start + end), _flat(h, top + begin, top + end)
            _units_forward(_of_gates(gates, start + begin, start + end), old, new, own_h)
            for r in range(begin, end):
                _copy(h[top + r], outputs[t, top + r][direction * size :], size)
            if end < rows:  # padding
                c[start + rows + end] = c[start + end]
                outputs[t, top + end, direction * size : (direction + 1) * size] = F32(0.0)
            begin = end + 1
    after[2 * direction + 1, top:bottom] = c[num_steps * rows : (num_steps + 1) * rows]
    brgemm_release(1)


@compiled
def _units_forward(gates: Any, old: Array, new: Array, h: Array) -> None:
    """The units of some rows: turn sums into i, f, g, o; fill c and h."""
    a_i, a_f, a_g, a_o = gates
    for k in range(len(h)):
        i, f, g, o = sigmoid(a_i[k]), sigmoid(a_f[k]), tanh(a_g[k]), sigmoid(a_o[k])
        a_i[k] = i
        a_f[k] = f
        a_g[k] = g
        a_o[k] = o
        memory = f * old[k] + i * g
        new[k] = memory
        h[k] = o * tanh(memory)


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
    inner, width = num_inputs + size + 1, 4 * size
    direction, top, bottom = _rows_of(part, num_parts, batch_size)
    rows = bottom - top
    num_rows = num_steps * rows
    entered, gates, c = _kept(kept[part], num_steps, rows, inner, size)
    apart = len(entered)
    d = view(scratch[part].ctypes.data, (4 * apart, size), F32)
    turned = view(row_address(d, 4 * apart), (width, CHUNK), F32)
    to_output, most_rows = _flat(turned, 0, width), 4 * CHUNK  # before `turned` is used for chunks
    for gate in range(4):
        d[gate * apart + num_rows : (gate + 1) * apart] = F32(0.0)
    W, U = matrices[2 * direction], matrices[2 * direction + 1]
    to_h, to_c = to_state[2 * direction], to_state[2 * direction + 1]
    for back in range(num_steps):
        s = num_steps - 1 - back
        t = num_steps - 1 - s if direction else s
        start = s * rows
        begin = 0
        while begin < rows:
            end = begin
            while end < min(rows, begin + most_rows) and t < lengths_B[top + end]:
                own = to_outputs[t, top + end][direction * size :]
                _copy(own, to_output[(end - begin) * size :], size)
                end += 1
            memories = (
                _flat(c, start + begin, start + end),
                _flat(c, start + rows + begin, start + rows + end),
            )
            flowing = (
                to_output,
                _flat(to_h, top + begin, top + end),
                _flat(to_c, top + begin, top + end),
            )
            own_gates = _of_gates(gates, start + begin, start + end)
            _units_backward(own_gates, memories, flowing, _of_gates(d, start + begin, start + end))
            if end < rows and t >= lengths_B[top + end]:  # padding
                for gate in range(4):
                    d[gate * apart + start + end] = F32(0.0)
                end += 1
            begin = end
        to_inputs = address(to_x, direction * num_steps + t, top)
        for gate in range(4):
            for r in range(rows):
                own = d[gate * apart + start + r]
                for k in range(size):
                    to_bias[part, gate * size + k] += own[k]
            left = row_address(d, gate * apart + start)
            brgemm_float32(
                *(rows, num_inputs, size, size, num_inputs, num_inputs, gate > 0),
                *(left, W + 4 * gate * size * num_inputs, to_inputs, 0),
            )
            brgemm_float32(
                *(rows, size, size, size, size, size, 1),
                *(left, U + 4 * gate * size * size, row_address(to_h, top), 0),
            )
    for start in range(0, num_rows, CHUNK):
        many = min(CHUNK, -(-(num_rows - start) // TURNED) * TURNED)
        for gate in range(4):
            own = d[gate * apart + start :]
            for r in range(0, many, TURNED):
                for n in range(size):
                    for i in range(TURNED):
                        turned[gate * size + n, r + i] = own[r + i, n]
        left, right = turned.ctypes.data, row_address(entered, start)
        brgemm_float32(
            *(width, num_inputs, many, CHUNK, inner, num_inputs, start > 0),
            *(left, right, address(to_W, part, 0), 0),
        )
        brgemm_float32(
            *(width, size, many, CHUNK, inner, size, start > 0),
            *(left, right + 4 * num_inputs, address(to_U, part, 0), 0),
        )
    brgemm_release(1)


@compiled
def _units_backward(gates: Any, memories: Any, flowing: Any, d: Any) -> None:
    """The units of some rows: from the gradients of output, h and c compute those of the gates'
    sums `d` and of the previous c; set that of h to zero."""
    a_i, a_f, a_g, a_o = gates
    d_i, d_f, d_g, d_o = d
    old, new = memories
    to_output, to_h, to_c = flowing
    for k in range(len(to_h)):
        i, f, g, o = a_i[k], a_f[k], a_g[k], a_o[k]
        shown = tanh(new[k])
        grad_h = to_output[k] + to_h[k]
        grad_c = to_c[k] + grad_h * o * (F32(1.0) - shown * shown)
        d_i[k] = grad_c * g * i * (F32(1.0) - i)
        d_f[k] = grad_c * old[k] * f * (F32(1.0) - f)
        d_g[k] = grad_c * i * (F32(1.0) - g * g)
        d_o[k] = grad_h * shown * o * (F32(1.0) - o)
        to_c[k] = grad_c * f
        to_h[k] = F32(0.0)
