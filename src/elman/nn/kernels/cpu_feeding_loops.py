"""Time loops of a decoder with attention and input feeding, compiled by numba (`cpu_feeding.py`).

Rows of a batch do not depend on each other, so each thread takes some of them through all steps.
Attention, gates and sums are float32. Where `is_half`, products are of bfloat16 matrices (in
panels: `blocks.py`), and their left sides are also kept rounded, in rows padded to an even length:
the arrays called `half_...`, which are empty otherwise.

T time steps, B batch, S source steps, H hidden units, M memory, R readout (what is fed), G gates
times H; Z = R + H for z = [fed; h], Y = M + H for y = [context; h].
"""

from __future__ import annotations

from typing import Any

from elman.nn.kernels.blocks import multiply_panels
from elman.nn.kernels.cpu_half_loops import halve
from elman.nn.kernels.cpu_loops import (
    address,
    lstm_units_backward,
    lstm_units_forward,
    multiply,
    row_address,
)
from elman.nn.kernels.loops import F32, Array, compiled, exp, inlined, tanh
from elman.nn.kernels.mkl import brgemm_release, set_threads
from elman.nn.kernels.team import (
    Doubles2,
    Floats1,
    Floats2,
    Floats3,
    Halves3,
    Packed,
    pooled_loop,
)

LOWEST_SCORE = F32(-1e30)
"""A finite minimum: inf - inf would be NaN."""


@inlined
def _multiply(
    is_half: int,
    left: Array,
    half_left: Array,
    time: int,
    first: int,
    rows: int,
    packed: Array,
    outer: int,
    adds: bool,
    out: Any,
    out_stride: int,
) -> None:
    """out = rows of a step of `left` times a packed matrix, or added to it."""
    if is_half:
        inner = half_left.shape[2]
        at = half_left.ctypes.data + 2 * (time * half_left.shape[1] + first) * inner
        data = packed.ctypes.data
        multiply_panels(at, inner, data, rows, inner, outer, adds, out, out_stride)
    else:
        inner = left.shape[2]
        at = address(left, time, first)
        beta = 1.0 if adds else 0.0
        multiply(at, inner, packed, rows, inner, outer, beta, out, out_stride)


@compiled
def _attend(keys: Array, memory: Array, mask: Array, h: Array, weights: Array, context: Any) -> Any:
    """One row: the attention weights, and the mean of the memory with them."""
    length, size = keys.shape
    highest = LOWEST_SCORE
    for s in range(length):
        score = F32(0.0)
        if mask[s] != F32(0.0):
            key = keys[s]
            for k in range(size):
                score += key[k] * h[k]
            highest = max(highest, score)
        weights[s] = score
    total = F32(0.0)
    for s in range(length):
        # `exp` is cut off at -87, where a weight is as good as 0.
        weights[s] = exp(weights[s] - highest) if mask[s] != F32(0.0) else F32(0.0)
        total += weights[s]
    factor = F32(1.0) / total if total > F32(0.0) else F32(0.0)
    context[:] = F32(0.0)
    for s in range(length):
        weight = weights[s] * factor
        weights[s] = weight
        if weight != F32(0.0):
            vector = memory[s]
            for m in range(len(context)):
                context[m] += weight * vector[m]


@compiled
def _attend_slopes(
    keys: Array, memory: Array, weights: Array, to_context: Array, to_scores: Array, to_h: Array
) -> None:
    """One row: the gradient of the scores; that of h by them is added to `to_h`."""
    mean = F32(0.0)
    for s in range(len(weights)):
        slope = F32(0.0)
        if weights[s] != F32(0.0):
            vector = memory[s]
            for m in range(len(to_context)):
                slope += vector[m] * to_context[m]
        to_scores[s] = slope
        mean += weights[s] * slope
    for s in range(len(weights)):
        slope = weights[s] * (to_scores[s] - mean)
        to_scores[s] = slope
        if slope != F32(0.0):
            key = keys[s]
            for k in range(len(to_h)):
                to_h[k] += slope * key[k]


@pooled_loop
def forward(
    is_half: int,
    A: Packed,
    readout: Packed,
    bias: Floats1,
    keys: Floats3,
    memory: Floats3,
    mask: Floats2,
    gates: Floats3,
    z: Floats3,
    half_z: Halves3,
    y: Floats3,
    half_y: Halves3,
    c: Floats3,
    weights: Floats3,
    first: int,
    last: int,
) -> None:
    """Fill `gates`, which hold W x, with i, f, g, o; z and c from step 1 on; y and the weights."""
    set_threads(1)
    num_steps, _, width = gates.shape
    size, rows = width // 4, last - first
    fed_size, memory_size = z.shape[2] - size, memory.shape[2]
    for t in range(num_steps):
        sums = address(gates, t, first)
        _multiply(is_half, z, half_z, t, first, rows, A, width, True, sums, width)
        for b in range(first, last):
            row, after = y[t, b], z[t + 1, b]
            h, context = row[memory_size:], row[:memory_size]
            lstm_units_forward(gates[t, b], bias, c[t, b], c[t + 1, b], h, 0, size)
            after[fed_size:] = h
            _attend(keys[b], memory[b], mask[b], h, weights[t, b], context)
            if is_half:
                halve(y[t, b], half_y[t, b], 0, y.shape[2])
        out = address(z, t + 1, first)
        _multiply(is_half, y, half_y, t, first, rows, readout, fed_size, False, out, z.shape[2])
        for b in range(first, last):
            fed = z[t + 1, b]
            for k in range(fed_size):
                fed[k] = tanh(fed[k])
            if is_half:
                halve(z[t + 1, b], half_z[t + 1, b], 0, z.shape[2])
    if is_half:
        brgemm_release(1)
    set_threads(0)


@pooled_loop
def backward(
    is_half: int,
    A: Packed,
    readout: Packed,
    keys: Floats3,
    memory: Floats3,
    gates: Floats3,
    z: Floats3,
    c: Floats3,
    weights: Floats3,
    to_vectors: Floats3,
    to_sums: Floats3,
    half_to_sums: Halves3,
    to_y: Floats3,
    to_scores: Floats3,
    to_gates: Floats3,
    half_to_gates: Halves3,
    to_z: Floats2,
    to_c: Floats2,
    to_bias: Doubles2,
    part: int,
    first: int,
    last: int,
) -> None:
    """Fill the gradients of the readout's sums, of y, of the scores and of the gates' sums. `to_z`
    and `to_c` hold the gradients of the final state and receive those of the initial one; that of
    the bias is added to the row of each part."""
    set_threads(1)
    num_steps, _, width = gates.shape
    size, rows = width // 4, last - first
    fed_size, memory_size, both = z.shape[2] - size, memory.shape[2], to_y.shape[2]
    for back in range(num_steps):
        t = num_steps - 1 - back
        for b in range(first, last):
            fed, slopes, later, out = z[t + 1, b], to_sums[t, b], to_z[b], to_vectors[t, b]
            for k in range(fed_size):
                slopes[k] = (out[k] + later[k]) * (F32(1.0) - fed[k] * fed[k])
            if is_half:
                halve(slopes, half_to_sums[t, b], 0, fed_size)
        at = address(to_y, t, first)
        _multiply(is_half, to_sums, half_to_sums, t, first, rows, readout, both, False, at, both)
        for b in range(first, last):
            later, row, own, d = to_z[b], to_y[t, b], to_scores[t, b], to_gates[t, b]
            to_context, to_h = row[:memory_size], row[memory_size:]
            _attend_slopes(keys[b], memory[b], weights[t, b], to_context, own, to_h)
            memories, flowing = (c[t, b], c[t + 1, b]), (to_h, later[fed_size:], to_c[b])
            lstm_units_backward(gates[t, b], memories, flowing, d, to_bias[part], 0, size)
            if is_half:
                halve(d, half_to_gates[t, b], 0, width)
        at = row_address(to_z, first)
        columns = to_z.shape[1]
        _multiply(is_half, to_gates, half_to_gates, t, first, rows, A, columns, False, at, columns)
    if is_half:
        brgemm_release(1)
    set_threads(0)
