"""The compiled loops of `model_step.py`: one step of a whole model, from records of addresses.

`_whole` is the step. It runs on one thread or on all of torch's threads, with weights in float32,
in int8 with a scale per row, or packed (`packing.py`); a small function below for each of these.
The arithmetic of a layer and of the output layer is written once: a thread computes the units (or
words) from `first` to `last`, in packed weights a part of the matrix.

B rows, P rows padded to a chunk, I inputs, H hidden units, G gates times H, V vocabulary. Arrays
are C-contiguous.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from elman.nn.kernels.blocks import panel_width
from elman.nn.kernels.cpu_loops import HEADER_BYTES, multiply_at
from elman.nn.kernels.loops import (
    F32,
    Array,
    compiled,
    exp,
    highest,
    inlined,
    positive,
    sigmoid,
    tanh,
)
from elman.nn.kernels.mkl import brgemm_float32, brgemm_release, set_threads
from elman.nn.kernels.team import Int64s, barrier, pooled_loop, team_size, thread_number, view

LSTM, GRU_AFTER, GRU_BEFORE, MINGRU, MINLSTM, SRU = range(6)
"""The kinds of cells that have a compiled step."""
ROWS_AT_ONCE = 64
"""Rows that a panel is multiplied by at once: oneDNN compiles code for each number of them."""
UNITS_APART = 8
"""Parts of a layer, or of the words, begin at multiples of this."""


def _numbers(*names: str) -> list[tuple[str, Any]]:
    return [(name, ctypes.c_int64) for name in names]


class Model(ctypes.Structure):
    """Sizes of a model, and addresses of its weights."""

    _fields_ = _numbers(
        *("kind", "num_layers", "layers", "vocab_size", "V", "v_scale", "v_bias"),
        *("table", "num_entries", "width", "is_projected"),
    )


class Layer(ctypes.Structure):
    """Sizes of a layer, and addresses of its weights."""

    _fields_ = _numbers(
        *("input_size", "hidden_size", "num_gates"),
        *("W", "w_scale", "U", "u_scale", "bias", "inner_bias"),
    )


class Call(ctypes.Structure):
    """What differs from step to step; `inputs` are tokens, or vectors if there is no table."""

    _fields_ = _numbers(
        *("num_rows", "padded_rows", "num_parts", "inputs", "states", "logits", "sums")
    )


class LayerStates(ctypes.Structure):
    """Addresses of a layer's state before and after the step, and of its output."""

    _fields_ = _numbers("h", "c", "output", "new_h", "new_c")


_MODEL, _LAYER, _CALL, _STATES = map(np.dtype, (Model, Layer, Call, LayerStates))


# Addresses come as integers; these functions turn them into arrays.


@inlined
def _float_matrix(address: int, rows: int, columns: int) -> Array:
    return view(address, (rows, columns), np.float32)


@inlined
def _int8_matrix(address: int, rows: int, columns: int) -> Array:
    return view(address, (rows, columns), np.int8)


@inlined
def _packed_matrix(address: int, rows: int, columns: int) -> Array:
    """The addresses of its parts; there are no more parts than rows."""
    return view(address, (rows,), np.int64)


@inlined
def _floats_at(address: int, size: int) -> Array:
    return view(address, (size,), np.float32)


@inlined
def _nothing() -> None:
    pass


@inlined
def _meet() -> None:
    barrier()


def edge(size: int, part: int, num_parts: int) -> int:
    """Where a part of about equal size begins."""
    first = (size * part + num_parts - 1) // num_parts
    return min(size, (first + UNITS_APART - 1) // UNITS_APART * UNITS_APART)


_edge = inlined(edge)


@inlined
def _whole(
    model_at: int,
    call_at: int,
    matrix: Callable[[int, int, int], Array],
    meet: Callable[[], None],
    thread: int,
    num_threads: int,
) -> None:
    """The share of one thread; `matrix` gives the arrays of weights their type."""
    model, call = view(model_at, (1,), _MODEL)[0], view(call_at, (1,), _CALL)[0]
    layers = view(model.layers, (model.num_layers,), _LAYER)
    states = view(call.states, (model.num_layers,), _STATES)
    num_parts, padded, num_rows = call.num_parts, call.padded_rows, call.num_rows
    if model.num_entries == 0:
        x = _float_matrix(call.inputs, num_rows, model.width)
    else:
        table = _float_matrix(model.table, model.num_entries, model.width)
        x = _look_up(table, view(call.inputs, (num_rows,), np.int64), padded)
    for i in range(model.num_layers):
        layer, state = layers[i], states[i]
        size = layer.hidden_size
        width = layer.num_gates * size
        h, c = _float_matrix(state.h, num_rows, size), _float_matrix(state.c, num_rows, size)
        new_h = _float_matrix(state.new_h, padded, size)
        new_c = _float_matrix(state.new_c, padded, size)
        output = _float_matrix(state.output, padded, size)
        for part in range(thread, num_parts, num_threads):
            _units(
                model.kind,
                matrix(layer.W, width, layer.input_size),
                _floats_at(layer.w_scale, width),
                matrix(layer.U, width, size),
                _floats_at(layer.u_scale, width),
                _floats_at(layer.bias, width),
                _floats_at(layer.inner_bias, size),
                x,
                i == 0 and model.is_projected != 0,
                h,
                c,
                output,
                new_h,
                new_c,
                part,
                _edge(size, part, num_parts),
                _edge(size, part + 1, num_parts),
            )
        meet()
        x = output
    if model.vocab_size == 0:
        return
    vocab_size = model.vocab_size
    logits = _float_matrix(call.logits, padded, vocab_size)
    sums = view(call.sums, (2, num_parts, num_rows), np.float64)
    for part in range(thread, num_parts, num_threads):
        _words(
            matrix(model.V, vocab_size, x.shape[1]),
            _floats_at(model.v_scale, vocab_size),
            _floats_at(model.v_bias, vocab_size),
            x,
            logits,
            sums[0, part],
            sums[1, part],
            part,
            _edge(vocab_size, part, num_parts),
            _edge(vocab_size, part + 1, num_parts),
        )
    meet()
    for part in range(thread, num_parts, num_threads):
        first, last = _edge(vocab_size, part, num_parts), _edge(vocab_size, part + 1, num_parts)
        _normalise(logits, sums, first, last)


@compiled
def float_step(model: int, call: int) -> None:
    """One thread, float32. `model` and `call` are the addresses of the records."""
    _whole(model, call, _float_matrix, _nothing, 0, 1)


@compiled
def int8_step(model: int, call: int) -> None:
    """One thread, int8."""
    _whole(model, call, _int8_matrix, _nothing, 0, 1)


@compiled
def packed_step(model: int, call: int) -> None:
    """One part, packed, on this thread; where MKL multiplies, it may use all threads."""
    _whole(model, call, _packed_matrix, _nothing, 0, 1)


@pooled_loop
def packed_step_on_threads(model: int, call: int) -> None:
    """All threads, packed."""
    set_threads(1)
    _whole(model, call, _packed_matrix, _meet, thread_number(), team_size())
    brgemm_release(1)
    set_threads(0)


@pooled_loop
def packed_steps(models: Int64s, calls: Int64s, first: int, last: int) -> None:
    """Several chunks of rows with packed weights, each on one thread."""
    set_threads(1)
    for i in range(first, last):
        _whole(models[i], calls[i], _packed_matrix, _nothing, 0, 1)
    set_threads(0)


@pooled_loop
def float_step_on_threads(model: int, call: int) -> None:
    """All threads, float32."""
    _whole(model, call, _float_matrix, _meet, thread_number(), team_size())


@pooled_loop
def int8_step_on_threads(model: int, call: int) -> None:
    """All threads, int8."""
    _whole(model, call, _int8_matrix, _meet, thread_number(), team_size())


@compiled
def _look_up(table: Array, tokens: Array, padded: int) -> Array:
    """The tokens' rows, and rows of zeros up to `padded`."""
    x = np.empty((padded, table.shape[1]), np.float32)
    for b in range(padded):
        if b < len(tokens):
            _copy(table[tokens[b]], x[b])
        else:
            _clear(x[b])
    return x


@compiled
def _copy(source: Array, target: Array) -> None:
    """Number by number: whole arrays at once take numba seconds to compile."""
    for k in range(len(source)):
        target[k] = source[k]


@compiled
def _clear(target: Array) -> None:
    for k in range(len(target)):
        target[k] = F32(0.0)


@compiled
def _add_product(w_NK: Array, scale_N: Array, x_BK: Array, out: Array, column: int) -> None:
    """out[:, column:] += x w', each row of w times its scale; four rows at a time read x once."""
    num_rows, width = w_NK.shape
    fours = num_rows - num_rows % 4
    for b in range(len(x_BK)):
        x, total = x_BK[b], out[b, column : column + num_rows]
        for i in range(0, fours, 4):
            s0, s1, s2, s3 = F32(0.0), F32(0.0), F32(0.0), F32(0.0)
            for k in range(width):
                s0 += F32(w_NK[i, k]) * x[k]
                s1 += F32(w_NK[i + 1, k]) * x[k]
                s2 += F32(w_NK[i + 2, k]) * x[k]
                s3 += F32(w_NK[i + 3, k]) * x[k]
            total[i] += s0 * scale_N[i]
            total[i + 1] += s1 * scale_N[i + 1]
            total[i + 2] += s2 * scale_N[i + 2]
            total[i + 3] += s3 * scale_N[i + 3]
        for i in range(fours, num_rows):
            s = F32(0.0)
            for k in range(width):
                s += F32(w_NK[i, k]) * x[k]
            total[i] += s * scale_N[i]


@compiled
def _add_packed(packed: int, x: Array, out: Array, column: int, outer: int) -> None:
    """out[:, column:] += x w'; `packed` is the address of w, packed for the rows of x or in
    panels."""
    num_rows, inner = x.shape
    stride = out.shape[1]
    left, target = x.ctypes.data, out.ctypes.data + 4 * column
    if view(packed - HEADER_BYTES, (1,), np.int64)[0] == 0:
        multiply_at(left, inner, packed, num_rows, inner, outer, 1.0, target, stride)
        return
    width = panel_width(2 * inner)
    for first in range(0, outer, width):
        own = min(width, outer - first)
        for b in range(0, num_rows, ROWS_AT_ONCE):
            rows, at = min(ROWS_AT_ONCE, num_rows - b), target + 4 * (b * stride + first)
            panel = packed + 4 * first * inner
            brgemm_float32(
                *(rows, own, inner, inner, own, stride, 1, left + 4 * b * inner, panel, at, 0)
            )


@compiled
def _add_gates(
    w: Array, scale: Array, x: Array, out: Array, size: int, part: int, first: int, last: int
) -> None:
    """out += x w' for the units from `first` to `last` of each gate of `size` units."""
    # numba compiles one branch, by the type of w.
    if w.ndim == 1:
        _add_packed(w[part], x, out, 0, out.shape[1])
    else:
        own = last - first
        for gate in range(out.shape[1] // own):
            begin = gate * size + first
            _add_product(w[begin : begin + own], scale[begin : begin + own], x, out, gate * own)


@compiled
def _units(
    kind: int,
    W: Array,
    w_scale: Array,
    U: Array,
    u_scale: Array,
    bias: Array,
    inner_bias: Array,
    x: Array,
    is_projected: bool,
    h: Array,
    c: Array,
    output: Array,
    new_h: Array,
    new_c: Array,
    part: int,
    first: int,
    last: int,
) -> None:
    """The units from `first` to `last` of a layer's step; only the LSTM has `c`."""
    num_rows, size = h.shape
    own, padded = last - first, len(x)
    if own == 0:
        return
    num_gates = len(bias) // size
    gates = np.empty((padded, num_gates * own), np.float32)
    for b in range(padded):
        for gate in range(num_gates):
            begin = gate * size + first
            source = x[b] if is_projected else bias
            _copy(source[begin : begin + own], gates[b, gate * own : (gate + 1) * own])
    if not is_projected:
        _add_gates(W, w_scale, x, gates, size, part, first, last)
    if kind == LSTM:
        _add_gates(U, u_scale, _padded(h, padded), gates, size, part, first, last)
        _lstm(gates, c, new_h, new_c, first, last)
    elif kind == GRU_AFTER:
        inner = np.zeros((padded, num_gates * own), np.float32)
        for b in range(num_rows):
            _copy(inner_bias[first:last], inner[b, 2 * own :])
        _add_gates(U, u_scale, _padded(h, padded), inner, size, part, first, last)
        _gru_after(gates, inner, h, new_h, first, last)
    elif kind == GRU_BEFORE:
        _gru_before(U, u_scale, gates, h, new_h)
    elif kind == MINGRU:
        _mingru(gates, h, new_h, first, last)
    elif kind == MINLSTM:
        _minlstm(gates, h, new_h, first, last)
    else:
        _sru(gates, x, h, output, new_h, first, last)
    for b in range(num_rows, padded):
        _clear(output[b, first:last])


@compiled
def _padded(h: Array, padded: int) -> Array:
    if len(h) == padded:
        return h
    rows = np.empty((padded, h.shape[1]), np.float32)
    for b in range(padded):
        if b < len(h):
            _copy(h[b], rows[b])
        else:
            _clear(rows[b])
    return rows


# The cells' equations, from the sums of their gates. `size` units, of which a loop has a part.


@compiled
def _lstm(gates: Array, c: Array, new_h: Array, new_c: Array, first: int, last: int) -> None:
    size = last - first
    for b in range(len(c)):
        sums, old = gates[b], c[b, first:last]
        h, cell = new_h[b, first:last], new_c[b, first:last]
        for k in range(size):
            i, f = sigmoid(sums[k]), sigmoid(sums[size + k])
            g, o = tanh(sums[2 * size + k]), sigmoid(sums[3 * size + k])
            cell[k] = f * old[k] + i * g
            h[k] = o * tanh(cell[k])


@compiled
def _gru_after(gates: Array, inner: Array, h: Array, new_h: Array, first: int, last: int) -> None:
    """`gates` are W x + b, `inner` U h + d: the reset comes after the product."""
    size = last - first
    for b in range(len(h)):
        sums, recurrent = gates[b], inner[b]
        old, new = h[b, first:last], new_h[b, first:last]
        for k in range(size):
            r = sigmoid(sums[k] + recurrent[k])
            u = sigmoid(sums[size + k] + recurrent[size + k])
            n = tanh(sums[2 * size + k] + r * recurrent[2 * size + k])
            new[k] = old[k] + u * (n - old[k])


@compiled
def _gru_before(U: Array, u_scale: Array, gates: Array, h: Array, new_h: Array) -> None:
    """The reset comes before the product, so all units are computed at once; never packed."""
    if U.ndim == 2:
        num_rows, size = h.shape
        split = 2 * size
        _add_product(U[:split], u_scale[:split], h, gates, 0)
        reset = np.empty_like(h)
        for b in range(num_rows):
            for k in range(size):
                reset[b, k] = sigmoid(gates[b, k]) * h[b, k]
        _add_product(U[split:], u_scale[split:], reset, gates, split)
        for b in range(num_rows):
            for k in range(size):
                u, n = sigmoid(gates[b, size + k]), tanh(gates[b, split + k])
                new_h[b, k] = h[b, k] + u * (n - h[b, k])


@compiled
def _mingru(gates: Array, h: Array, new_h: Array, first: int, last: int) -> None:
    size = last - first
    for b in range(len(h)):
        sums, old, new = gates[b], h[b, first:last], new_h[b, first:last]
        for k in range(size):
            new[k] = old[k] + sigmoid(sums[k]) * (positive(sums[size + k]) - old[k])


@compiled
def _minlstm(gates: Array, h: Array, new_h: Array, first: int, last: int) -> None:
    """i / (f + i) = (1 + e^-b) / (2 + e^-a + e^-b)."""
    size = last - first
    for b in range(len(h)):
        sums, old, new = gates[b], h[b, first:last], new_h[b, first:last]
        for k in range(size):
            low = max(F32(0.0), max(-sums[k], -sums[size + k]))
            one, i, f = exp(-low), exp(-sums[k] - low), exp(-sums[size + k] - low)
            share = (one + f) / (one + i + one + f)
            new[k] = old[k] + share * (positive(sums[2 * size + k]) - old[k])


@compiled
def _sru(
    gates: Array, x: Array, c: Array, output: Array, new_c: Array, first: int, last: int
) -> None:
    """x is carried to the output, or its product with the fourth part of W if the widths differ."""
    size = last - first
    for b in range(len(c)):
        sums, old = gates[b], c[b, first:last]
        new, out = new_c[b, first:last], output[b, first:last]
        carried = x[b, first:last] if len(sums) == 3 * size else sums[3 * size :]
        for k in range(size):
            n, f, r = sums[k], sigmoid(sums[size + k]), sigmoid(sums[2 * size + k])
            new[k] = n + f * (old[k] - n)
            out[k] = carried[k] + r * (tanh(new[k]) - carried[k])


# The output layer


@compiled
def _words(
    V: Array,
    scale: Array,
    bias: Array,
    x: Array,
    logits: Array,
    tops: Array,
    totals: Array,
    part: int,
    first: int,
    last: int,
) -> None:
    """Logits of the words from `first` to `last`, each row's highest and sum of exponentials."""
    if first == last:  # fewer words than parts
        for b in range(len(tops)):
            tops[b], totals[b] = -np.inf, 0.0
        return
    for b in range(len(x)):
        _copy(bias[first:last], logits[b, first:last])
    if V.ndim == 1:
        _add_packed(V[part], x, logits, first, last - first)
    else:
        _add_product(V[first:last], scale[first:last], x, logits, first)
    for b in range(len(tops)):
        row = logits[b, first:last]
        top, total = highest(row), 0.0
        for k in range(len(row)):
            total += exp(row[k] - top)
        tops[b], totals[b] = top, total


@compiled
def _normalise(logits: Array, sums: Array, first: int, last: int) -> None:
    """Turn logits into log probabilities, given the highest logits and the sums of all parts."""
    tops, totals = sums[0], sums[1]
    num_parts, num_rows = tops.shape
    for b in range(num_rows):
        top, total = tops[0, b], 0.0
        for part in range(num_parts):
            top = max(top, tops[part, b])
        for part in range(num_parts):
            total += totals[part, b] * np.exp(tops[part, b] - top)
        shift, row = F32(top + np.log(total)), logits[b, first:last]
        for k in range(len(row)):
            row[k] -= shift
