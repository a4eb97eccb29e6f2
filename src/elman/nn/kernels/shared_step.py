"""A whole model's step by all threads, for a few streams of a model too large for one core's cache.

Such a step is one pass over the weights, and one core reads memory at half the rate of two. Each
thread takes some of the units of every layer and some of the words of the output layer: it
multiplies by their rows alone, and the threads meet once per layer, where the next one needs all
units, and once for the softmax. The whole step is one task on torch's threads (`team.py`), its
products and gates those of `loops.py`.

B rows, I inputs, H hidden units, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from elman.nn.kernels import products, team
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
    Given,
    barrier,
    doubles,
    floats,
    numbers,
    small_wholes,
    team_size,
    thread_number,
    wholes,
)

KINDS = (LSTM, GRU_AFTER)
"""The kinds of cells that are served."""


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
        self._embedding = torch.from_numpy(embedding)
        self._layers = [tuple(map(torch.from_numpy, layer)) for layer in layers]
        self._softmax = tuple(map(torch.from_numpy, softmax))
        self._about = torch.tensor([kind, len(layers)])
        self._task = _int8_step if self._softmax[0].dtype == torch.int8 else _floats_step
        self._num_bytes = _num_bytes([softmax[0], *(W for layer in layers for W in layer[:4:2])])
        self._jobs: dict[tuple[int, int], team.Job] = {}
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
        changing = [tokens_B.contiguous(), logprobs_BV, sums]
        for before, new in zip(states, after, strict=True):
            changing += before[0], before[-1], new[0], new[-1]
        if key not in self._jobs:
            arrays = [self._about, *changing, self._embedding, *self._softmax]
            arrays += [array for layer in self._layers for array in layer]
            self._jobs[key] = team.Job(self._task, num_parts, num_parts, arrays)
        self._jobs[key](dict(enumerate(changing, start=2)))
        return logprobs_BV, after


def _num_bytes(matrices: Sequence[Any]) -> int:
    return sum(matrix.nbytes for matrix in matrices)


@team.Task
def _floats_step(given: Given) -> None:
    _step(given, _matrix)


@team.Task
def _int8_step(given: Given) -> None:
    _step(given, small_wholes)


@inlined
def _matrix(given: Given, index: int) -> Array:
    return floats(given, index)[0]


@inlined
def _step(given: Given, matrix: Callable[[Given, int], Array]) -> None:
    """Given: kind and number of layers; tokens, log probabilities, each part's highest logits and
    sums; for each layer h, c and the new ones; embedding; the softmax's matrix, scales and bias;
    for each layer W, its scales, U, its scales, bias, inner bias. `matrix` reads one of weights.
    """
    num_parts, size = numbers(given)[0], team_size()
    kind, num_layers = wholes(given, 1)
    logits, sums = floats(given, 3)[0], doubles(given, 4)
    tops, totals = sums[:num_parts], sums[num_parts:]
    weights = 5 + 4 * num_layers
    x = _entering(floats(given, weights)[0], wholes(given, 2))
    for layer in range(num_layers):
        state, at = 5 + 4 * layer, weights + 4 + 6 * layer
        h, c = floats(given, state)[0], floats(given, state + 1)[0]
        new_h, new_c = floats(given, state + 2)[0], floats(given, state + 3)[0]
        scales = floats(given, at + 1)[0, 0], floats(given, at + 3)[0, 0]
        biases = floats(given, at + 4)[0, 0], floats(given, at + 5)[0, 0]
        for part in range(thread_number(), num_parts, size):
            first, last = h.shape[1] * part // num_parts, h.shape[1] * (part + 1) // num_parts
            rest = kind, scales, biases, x, h, c, new_h, new_c, first, last
            _units(matrix(given, at), matrix(given, at + 2), *rest)
        barrier()
        x = new_h
    scale, bias = floats(given, weights + 2)[0, 0], floats(given, weights + 3)[0, 0]
    for part in range(thread_number(), num_parts, size):
        first, last = len(bias) * part // num_parts, len(bias) * (part + 1) // num_parts
        out = logits[:, first:last]
        _words(matrix(given, weights + 1)[first:last], scale, bias, x, out, first)
        _sums(out, tops[part], totals[part])
    barrier()
    for part in range(thread_number(), num_parts, size):
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
