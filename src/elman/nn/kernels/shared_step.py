"""A whole model's step by all threads, for a few streams of a model too large for one core's cache.

Such a step is one pass over the weights, and one core reads memory at half the rate of two. Each
thread takes some of the units of every layer and some of the words of the output layer: it
multiplies by their rows alone, and the threads meet once per layer, where the next one needs all
units, and once for the softmax. The whole step is one loop on torch's threads (`team.py`), its
products and gates those of `loops.py`.

B rows, I inputs, H hidden units, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from elman.nn.kernels import products
from elman.nn.kernels.loops import (
    GRU_AFTER,
    LSTM,
    add_product,
    compiled,
    exp,
    gru_after_gates,
    highest,
    inlined,
    lstm_gates,
)
from elman.nn.kernels.team import (
    Array,
    Doubles2,
    Floats1,
    Floats2,
    Int8s2,
    Int64s,
    PooledCall,
    Records,
    barrier,
    pooled_loop,
    team_size,
    thread_number,
    view,
)

KINDS = (LSTM, GRU_AFTER)
"""The kinds of cells that are served."""

_I64 = np.int64
_WEIGHTS = Records(
    num_inputs=_I64,
    hidden_size=_I64,
    num_gates=_I64,
    W=_I64,
    w_scale=_I64,
    U=_I64,
    u_scale=_I64,
    bias=_I64,
    inner_bias=_I64,
)
_STATES = Records(h=_I64, c=_I64, new_h=_I64, new_c=_I64)
Weights = Annotated[Any, _WEIGHTS]
"""Sizes of each layer, and the addresses of its weights."""
States = Annotated[Any, _STATES]
"""The addresses of each layer's states, (B, H)."""


class SharedStep:
    """The weights of a model, laid out for the team."""

    def __init__(
        self,
        kind: int,
        embedding: Any,
        layers: Sequence[tuple[Any, Any, Any, Any, Any, Any]],
        softmax: tuple[Any, Any, Any],
    ) -> None:
        """`layers` have W, its scales, U, its scales, bias and inner bias each; `softmax` the
        matrix, its scales and the bias."""
        self._kind = kind
        self._embedding = embedding
        self._arrays = layers  # kept alive: the records below have only their addresses
        self._layers = np.array(
            [
                (
                    *(W.shape[1], U.shape[1], len(U) // U.shape[1]),
                    *(array.ctypes.data for array in (W, w_scale, U, u_scale, *biases)),
                )
                for W, w_scale, U, u_scale, *biases in layers
            ],
            _WEIGHTS.dtype,
        )
        self._softmax = softmax
        self._loop = _int8_step if softmax[0].dtype == np.int8 else _floats_step
        self._num_bytes = _num_bytes([softmax[0], *(W for layer in layers for W in layer[:4:2])])
        self._calls: dict[tuple[int, int], PooledCall] = {}
        """By the numbers of rows and of parts."""

    @staticmethod
    def serves(kind: int, matrices: Sequence[Any]) -> bool:
        """Whether the team is worth waking for a model of these matrices, all of one type."""
        same = len({matrix.dtype for matrix in matrices}) == 1
        return kind in KINDS and same and products.is_shared(_num_bytes(matrices))

    def __call__(
        self, tokens_B: Tensor, states: Sequence[Sequence[Tensor]]
    ) -> tuple[Tensor, list[list[Tensor]]]:
        """Log probabilities (B, V) after `tokens_B`, and the states after them; a layer's `states`
        are its h and, of an LSTM, its c, contiguous."""
        if not all(0 <= token < len(self._embedding) for token in tokens_B.tolist()):
            raise IndexError("a token is not in the vocabulary")
        num_parts = 1 + self._num_bytes // products.SHARED_BYTES
        key = num_rows, num_parts = len(tokens_B), min(num_parts, torch.get_num_threads())
        logprobs_BV = torch.empty(num_rows, len(self._softmax[2]), dtype=torch.float32)
        sums = torch.empty(2 * num_parts, num_rows, dtype=torch.float64)
        after = [list(map(torch.empty_like, layer)) for layer in states]
        addresses = [
            (before[0].data_ptr(), before[-1].data_ptr(), new[0].data_ptr(), new[-1].data_ptr())
            for before, new in zip(states, after, strict=True)
        ]
        changing = {
            "tokens": tokens_B.contiguous(),
            "logits": logprobs_BV,
            "sums": sums,
            "states": np.array(addresses, _STATES.dtype),
        }
        if key not in self._calls:
            V, v_scale, v_bias = self._softmax
            arguments: dict[str, Any] = {
                "kind": self._kind,
                "embedding": self._embedding,
                "layers": self._layers,
                "V": V,
                "v_scale": v_scale,
                "v_bias": v_bias,
            }
            call = PooledCall(self._loop, num_parts, num_parts, {**arguments, **changing})
            self._calls[key] = call
        self._calls[key](**changing)
        return logprobs_BV, after


def _num_bytes(matrices: Sequence[Any]) -> int:
    return sum(matrix.nbytes for matrix in matrices)


@pooled_loop
def _floats_step(
    kind: int,
    tokens: Int64s,
    embedding: Floats2,
    layers: Weights,
    states: States,
    V: Floats2,
    v_scale: Floats1,
    v_bias: Floats1,
    logits: Floats2,
    sums: Doubles2,
    num_parts: int,
) -> None:
    x = _entering(embedding, tokens)
    x = _run_layers(kind, x, layers, states, num_parts, _float_matrix)
    _output(x, V, v_scale, v_bias, logits, sums, num_parts)


@pooled_loop
def _int8_step(
    kind: int,
    tokens: Int64s,
    embedding: Floats2,
    layers: Weights,
    states: States,
    V: Int8s2,
    v_scale: Floats1,
    v_bias: Floats1,
    logits: Floats2,
    sums: Doubles2,
    num_parts: int,
) -> None:
    x = _entering(embedding, tokens)
    x = _run_layers(kind, x, layers, states, num_parts, _int8_matrix)
    _output(x, V, v_scale, v_bias, logits, sums, num_parts)


@inlined
def _float_matrix(address: int, num_rows: int, num_columns: int) -> Array:
    return view(address, (num_rows, num_columns), np.float32)


@inlined
def _int8_matrix(address: int, num_rows: int, num_columns: int) -> Array:
    return view(address, (num_rows, num_columns), np.int8)


@inlined
def _run_layers(
    kind: int,
    x: Array,
    layers: Array,
    states: Array,
    num_parts: int,
    matrix: Callable[[int, int, int], Array],
) -> Array:
    """All layers, each thread with some units of each; `matrix` reads one of weights."""
    num_rows = len(x)
    for index in range(len(layers)):
        layer, state = layers[index], states[index]
        size, width = layer.hidden_size, layer.num_gates * layer.hidden_size
        h, c = _float_matrix(state.h, num_rows, size), _float_matrix(state.c, num_rows, size)
        new_h = _float_matrix(state.new_h, num_rows, size)
        new_c = _float_matrix(state.new_c, num_rows, size)
        scales = (
            view(layer.w_scale, (width,), np.float32),
            view(layer.u_scale, (width,), np.float32),
        )
        biases = view(layer.bias, (width,), np.float32), view(layer.inner_bias, (size,), np.float32)
        W, U = matrix(layer.W, width, layer.num_inputs), matrix(layer.U, width, size)
        for part in range(thread_number(), num_parts, team_size()):
            first, last = size * part // num_parts, size * (part + 1) // num_parts
            _units(W, U, kind, scales, biases, x, h, c, new_h, new_c, first, last)
        barrier()
        x = new_h
    return x


@inlined
def _output(
    x: Array, V: Array, scale: Array, bias: Array, logits: Array, sums: Array, num_parts: int
) -> None:
    """The output layer, each thread with some words; `sums` holds each part's highest logits and
    sums of exponentials."""
    tops, totals = sums[:num_parts], sums[num_parts:]
    for part in range(thread_number(), num_parts, team_size()):
        first, last = len(bias) * part // num_parts, len(bias) * (part + 1) // num_parts
        out = logits[:, first:last]
        _words(V[first:last], scale, bias, x, out, first)
        _sums(out, tops[part], totals[part])
    barrier()
    for part in range(thread_number(), num_parts, team_size()):
        first, last = len(bias) * part // num_parts, len(bias) * (part + 1) // num_parts
        _normalise(logits[:, first:last], tops, totals)


@compiled
def _entering(embedding: Array, tokens: Array) -> Array:
    """The tokens' vectors."""
    x = np.empty((len(tokens), embedding.shape[1]), np.float32)
    for b in range(len(tokens)):
        _copy(embedding[tokens[b]], x[b])
    return x


@compiled
def _copy(source: Array, target: Array) -> None:
    """Number by number: whole arrays at once take numba seconds to compile."""
    for k in range(len(source)):
        target[k] = source[k]


@compiled
def _units(
    W: Array,
    U: Array,
    kind: int,
    scales: Array,
    biases: Array,
    x: Array,
    h: Array,
    c: Array,
    new_h: Array,
    new_c: Array,
    first: int,
    last: int,
) -> None:
    """The units from `first` to `last` of a layer's step."""
    size, own = h.shape[1], last - first
    num_gates = len(U) // size
    gates = np.empty((len(x), num_gates * own), np.float32)
    recurrent = np.zeros((len(x), num_gates * own), np.float32)
    for gate in range(num_gates):
        begin, end = gate * size + first, gate * size + last
        mine = gate * own
        for b in range(len(x)):
            _copy(biases[0][begin:end], gates[b, mine : mine + own])
        add_product(W[begin:end], scales[0][begin:end], x, gates[:, mine : mine + own])
        into = gates if kind == LSTM else recurrent
        add_product(U[begin:end], scales[1][begin:end], h, into[:, mine : mine + own])
    if kind == LSTM:
        h_own, c_own = lstm_gates(gates, c[:, first:last])
        for b in range(len(x)):
            _copy(c_own[b], new_c[b, first:last])
    else:
        for b in range(len(x)):
            for k in range(own):
                recurrent[b, 2 * own + k] += biases[1][first + k]
        h_own = gru_after_gates(gates, recurrent, h[:, first:last])
    for b in range(len(x)):
        _copy(h_own[b], new_h[b, first:last])


@compiled
def _words(V: Array, scale: Array, bias: Array, hidden: Array, logits: Array, first: int) -> None:
    """The logits of the words from `first` on."""
    last = first + len(V)
    for b in range(len(hidden)):
        _copy(bias[first:last], logits[b])
    add_product(V, scale[first:last], hidden, logits)


@compiled
def _sums(logits: Array, tops: Array, totals: Array) -> None:
    """Each row's highest logit, and the sum of the exponentials of what the others are below it."""
    for b in range(len(logits)):
        if logits.shape[1] == 0:  # fewer words than parts
            tops[b], totals[b] = -np.inf, 0.0
            continue
        top, total = highest(logits[b]), 0.0
        for k in range(logits.shape[1]):
            total += exp(logits[b, k] - top)
        tops[b], totals[b] = top, total


@compiled
def _normalise(logits: Array, tops: Array, totals: Array) -> None:
    """Logits become log probabilities, given all parts' highest logits and sums."""
    for b in range(len(logits)):
        top, total = tops[0, b], 0.0
        for part in range(len(tops)):
            top = max(top, tops[part, b])
        for part in range(len(tops)):
            total += totals[part, b] * np.exp(tops[part, b] - top)
        shift = np.float32(top + np.log(total))
        for k in range(logits.shape[1]):
            logits[b, k] -= shift
