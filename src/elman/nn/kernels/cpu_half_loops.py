"""Time loops of the LSTM with products in bfloat16, compiled by numba, forward and backward.

Sums, gates and cell states are float32, as in `cpu_loops.py`; h and the gradients of the gates are
also kept in bfloat16, as left sides of products (`blocks.py`).

Each part of the work is some rows of the batch and some of the units, `edges` (N, 4): first row,
last row, first unit, last unit. Where parts have the same rows (`meets`), the threads meet at every
step. `U` has the address of each part's rows of each gate, packed, or (backward) of its columns.

T time steps, B batch, I inputs, H hidden units, G gates times H, K units padded to an even number.
"""

from __future__ import annotations

from elman.nn.kernels.blocks import multiply_panels, panel_width
from elman.nn.kernels.cpu_loops import (
    STEPS_AHEAD,
    address,
    lstm_units_backward,
    lstm_units_forward,
    of_gate,
    row_address,
)
from elman.nn.kernels.loops import F32, Array, compiled, halved
from elman.nn.kernels.mkl import brgemm_bfloat16, brgemm_release
from elman.nn.kernels.team import (
    Doubles2,
    Floats1,
    Floats2,
    Floats3,
    Halves3,
    Int64s,
    Int64s2,
    barrier,
    pooled_loop,
    team_size,
    thread_number,
)


@compiled
def halve(source: Array, target: Array, first: int, last: int) -> None:
    """Round some numbers of a row."""
    source, target = source[first:last], target[first:last]
    for k in range(last - first):
        target[k] = halved(source[k])


@pooled_loop
def lstm_forward(
    lengths_B: Int64s,
    edges: Int64s2,
    meets: int,
    W: Int64s,
    U: Int64s,
    bias: Floats1,
    x: Halves3,
    gates: Floats3,
    h: Floats3,
    halves: Halves3,
    c: Floats3,
) -> None:
    """Fill `gates` with i, f, g, o; h, c and `halves` (h in bfloat16) from step 1 on. Every other
    step multiplies the gates in reverse order: the matrix read last is still in the cache.

    Where x has no columns, `gates` already hold W x. Where nothing is kept for gradients, `gates`
    has fewer steps and h and c two, which are used again and again.
    """
    num_steps, batch_size, inner = halves.shape
    size = c.shape[2]
    for t in range(num_steps - 1):
        now, old, new = t % len(gates), t % len(c), (t + 1) % len(c)
        if x.shape[2] and t % STEPS_AHEAD == 0:
            stop = min(num_steps - 1, t + STEPS_AHEAD)
            for part in range(thread_number(), len(edges), team_size()):
                _project(x, W, gates, edges[part], 4 * part, t, stop)
        for part in range(thread_number(), len(edges), team_size()):
            top, bottom, first, last = edges[part]
            left = halves.ctypes.data + 2 * (t * batch_size + top) * inner
            for turn in range(4):
                gate = turn if t % 2 == 0 else 3 - turn
                out = address(gates, now, top) + 4 * (gate * size + first)
                matrix, rows, own = U[4 * part + gate], bottom - top, last - first
                multiply_panels(left, inner, matrix, rows, inner, own, 1, out, 4 * size)
            for b in range(top, bottom):
                new_c, new_h = c[new, b], h[new, b]
                if t >= lengths_B[b]:
                    new_h[first:last] = h[old, b, first:last]
                    new_c[first:last] = c[old, b, first:last]
                else:
                    lstm_units_forward(gates[now, b], bias, c[old, b], new_c, new_h, first, last)
                halve(new_h, halves[t + 1, b], first, last)
        if meets:
            barrier()
    brgemm_release(1)


@compiled
def _project(
    x: Array, W: Array, gates: Array, edges: Array, first_matrix: int, start: int, stop: int
) -> None:
    """W x of some steps for the rows and units of a part, a panel of W after the other."""
    top, bottom, first, last = edges
    batch_size, inner = x.shape[1:]
    size, rows, step = gates.shape[2] // 4, bottom - top, 1
    if rows == batch_size:  # all steps lie one behind the other
        rows, step = rows * (stop - start), stop - start
    width = panel_width(inner)
    for gate in range(4):
        for begin in range(first, last, width):
            own = min(width, last - begin)
            panel = W[first_matrix + gate] + 2 * (begin - first) * inner
            for t in range(start, stop, step):
                left = x.ctypes.data + 2 * (t * batch_size + top) * inner
                out = address(gates, t % len(gates), top) + 4 * (gate * size + begin)
                brgemm_bfloat16(
                    *(rows, own, inner, inner, own, 4 * size),
                    *(0, left, panel, out, 1),
                )


@pooled_loop
def lstm_backward(
    lengths_B: Int64s,
    edges: Int64s2,
    meets: int,
    U: Int64s,
    gates: Floats3,
    c: Floats3,
    to_outputs: Floats3,
    to_gates: Halves3,
    scratch: Floats2,
    to_h: Floats2,
    to_c: Floats2,
    to_bias: Doubles2,
) -> None:
    """Fill `to_gates` (T, B, G) with the gradients of the gates' sums; add those of the bias to the
    row of each part. `to_h` and `to_c` (B, H) hold the gradients of the final state and receive
    those of the initial one. `scratch` has a row for each part."""
    num_steps, batch_size, size = to_outputs.shape
    for back in range(num_steps):
        t = num_steps - 1 - back
        for part in range(thread_number(), len(edges), team_size()):
            top, bottom, first, last = edges[part]
            for b in range(top, bottom):
                d = scratch[part]
                if t >= lengths_B[b]:
                    for gate in range(4):
                        of_gate(d, gate, first, last)[:] = F32(0.0)
                else:
                    memories = c[t, b], c[t + 1, b]
                    flowing = to_outputs[t, b], to_h[b], to_c[b]
                    own_bias = to_bias[part]
                    lstm_units_backward(gates[t, b], memories, flowing, d, own_bias, first, last)
                for gate in range(4):
                    start = gate * size
                    halve(d, to_gates[t, b], start + first, start + last)
        if meets:
            barrier()
        for part in range(thread_number(), len(edges), team_size()):
            top, bottom, first, last = edges[part]
            out, own = row_address(to_h, top) + 4 * first, last - first
            left, width = to_gates.ctypes.data + 8 * (t * batch_size + top) * size, 4 * size
            multiply_panels(left, width, U[part], bottom - top, width, own, 1, out, size)
    brgemm_release(1)
