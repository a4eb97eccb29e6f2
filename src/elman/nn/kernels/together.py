"""Many streams a step further in one compiled call, for models that run on a CPU.

A product of matrices brings its right side into the processor's order first. For the few rows of a
step that costs more than the product, so here the weights are packed once (`mkl.py`) and used for
every token. Rows are multiplied in chunks of two sizes, the last one filled up with zeros, because
MKL packs a matrix for a number of rows.

Where the vocabulary is small, the first layer's W x + b is looked up instead of x: half of the work
of a model of one layer. Without MKL or numba nothing here is called.

B rows, P rows with those that fill up, I inputs, H hidden units, G gates times H, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from elman.nn.kernels import mkl
from elman.nn.kernels.cpu_loops import multiply
from elman.nn.kernels.loops import LSTM, compiled, gru_after_gates, lstm_gates, normalise

Array = Any

CHUNK_SIZES = (16, 64)
"""Rows that are multiplied at once: for few of them, and for many."""


def chunks(num_rows: int) -> Iterator[tuple[int, int, int]]:
    """First row, row past the last and size of each chunk; only the last one is ever filled up."""
    small, large = CHUNK_SIZES
    first = 0
    while first < num_rows:
        size = large if num_rows - first > large - small else small
        yield first, min(num_rows, first + size), size
        first += size


def packed(weight: Tensor, num_rows: int) -> Any:
    """`weight` (N, K) for products x weight' with so many rows of x."""
    outer, inner = weight.shape
    room = torch.empty(mkl.packed_size(num_rows, outer, inner) + 16)
    room = room[-room.data_ptr() % 64 // 4 :]
    mkl.pack(weight.detach().contiguous(), num_rows, room)
    return room.numpy()


@compiled
def _room(num_rows: int, width: int, num_real: int) -> Array:
    """Rows to be filled, and rows of zeros that fill up."""
    rows = np.empty((num_rows, width), np.float32)
    rows[num_real:] = np.float32(0.0)
    return rows


@compiled
def _add_product(x: Array, weight: Array, out: Array) -> None:
    """out += x weight', `weight` packed for the rows of x.

    A function of its own, because numba lets go of an array whose address is all that is still
    wanted, but not of one that it has passed on.
    """
    (rows, inner), outer = x.shape, out.shape[1]
    multiply(x.ctypes.data, inner, weight, rows, inner, outer, 1.0, out.ctypes.data, outer)


@compiled
def model_step(
    kind: int,
    entering: Array,
    is_table: bool,
    Ws: Array,
    Us: Array,
    biases: Array,
    inner_biases: Array,
    V: Array,
    v_bias: Array,
    tokens: Array,
    hs: Array,
    cs: Array,
    new_hs: Array,
    new_cs: Array,
    logprobs: Array,
) -> None:
    """A whole model's step for a chunk: `logprobs` (P, V), of which the rows past those of `tokens`
    fill up, and the new states are filled in.

    `entering` has the embeddings, or for a table what the first layer makes of them, W x + b. What
    there is one of per layer comes as a tuple, matrices packed; `cs` and `new_cs` count for the
    LSTM alone, `inner_biases` for the GRU.
    """
    num_rows, size = len(tokens), len(logprobs)
    x = _room(size, entering.shape[1], num_rows)
    for b in range(num_rows):
        if not 0 <= tokens[b] < len(entering):
            raise IndexError("a token is not in the vocabulary")
        x[b] = entering[tokens[b]]
    for layer in range(len(Us)):
        h, U, bias = hs[layer], Us[layer], biases[layer]
        hidden, width = h.shape[1], len(bias)
        before = _room(size, hidden, num_rows)
        before[:num_rows] = h
        if layer == 0 and is_table:
            gates = x
        else:
            gates = np.empty((size, width), np.float32)
            for b in range(size):
                gates[b] = bias
            _add_product(x, Ws[layer], gates)
        if kind == LSTM:
            _add_product(before, U, gates)
            new_h, new_c = lstm_gates(gates[:num_rows], cs[layer])
            new_cs[layer][:] = new_c
        else:
            inner = np.zeros((size, width), np.float32)
            for b in range(num_rows):
                inner[b, width - hidden :] = inner_biases[layer]
            _add_product(before, U, inner)
            new_h = gru_after_gates(gates[:num_rows], inner[:num_rows], h)
        new_hs[layer][:] = new_h
        x = _room(size, hidden, num_rows)
        x[:num_rows] = new_h
    for b in range(size):
        logprobs[b] = v_bias
    _add_product(x, V, logprobs)
    normalise(logprobs[:num_rows])
