"""Loops compiled by numba for one or a few rows: a step of a cell, and the output layer.

A step of decoding multiplies a vector by every matrix once, so what it can cost at least is one
pass over the weights. Each function here makes that pass and nothing else: products, gates and new
state in one call, outside the interpreter and its lock. Matrices come with a scale per row: weights
of one byte (`nn/quantise.py`) are widened as they are read, and a quarter of the memory is passed
over; for float32 the scales are ones.

Without numba the functions stay plain Python, and `kernels/stream.py` does not call them.

B rows, I inputs, H hidden units, V vocabulary, G gates times H. Arrays are C-contiguous float32.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib import import_module
from inspect import unwrap
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from elman.base.cache import cache_folder

numba: Any = None
with suppress(ImportError):
    numba = import_module("numba")

Array = Any
"""An array inside a compiled loop, where numba gives it its type."""
R = TypeVar("R")

_OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    # Sums may be split over vector lanes and products fused; infinities and NaN keep their meaning.
    "fastmath": {"reassoc", "contract", "nsz", "arcp"},
}
F32 = np.float32


@contextmanager
def own_cache() -> Iterator[None]:
    """A folder for machine code that belongs to the kernels as they are written now.

    numba notices a change in a function's own file, not in those that it calls.
    """
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(_machine_code())
    try:
        yield
    finally:
        numba.config.CACHE_DIR = before


def is_compiled() -> bool:
    """Whether there is machine code from before; else the first steps of everything wait for it."""
    return numba is None or any(_machine_code().rglob("*.nbc"))


def _machine_code() -> Path:
    given = numba.config.CACHE_DIR
    parent = Path(given) if given else cache_folder() / "numba"
    return parent / sources_digest()


@lru_cache(None)
def sources_digest() -> str:
    """A hash of the kernels' sources."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in sources)).hexdigest()[:16]


def compiled(function: Callable[..., R]) -> Callable[..., R]:
    """Compile on the first call; the machine code is cached where there is a folder for it."""
    function = unwrap(function)  # the test run wraps functions to check shapes
    if numba is None:
        return function
    try:
        with own_cache():
            fast: Callable[..., R] = numba.njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:
        fast = numba.njit(**_OPTIONS)(function)
    return fast


def inlined(function: Callable[..., R]) -> Callable[..., R]:
    """Put the body of a small function where it is called."""
    if numba is None:
        return function
    body: Callable[..., R] = numba.njit(inline="always", **_OPTIONS)(unwrap(function))
    return body


# Functions of one number. libm's would be called once per number; these become vector code.


@inlined
def exp(x: Any) -> Any:
    """e to the x within 1e-7 (Cephes' polynomial), for x cut off at -87 and 88."""
    x = min(max(x, F32(-87.0)), F32(88.0))
    power = np.floor(x * F32(1.44269504088896341) + F32(0.5))
    r = x - power * F32(0.693359375) - power * F32(-2.12194440e-4)
    p = F32(1.9875691500e-4)
    p = p * r + F32(1.3981999507e-3)
    p = p * r + F32(8.3334519073e-3)
    p = p * r + F32(4.1665795894e-2)
    p = p * r + F32(1.6666665459e-1)
    p = p * r + F32(5.0000001201e-1)
    p = p * (r * r) + r + F32(1.0)
    bits = (np.int32(power) + np.int32(127)) << np.int32(23)
    return p * np.int32(bits).view(np.float32)


@inlined
def sigmoid(x: Any) -> Any:
    """1 / (1 + e to the -x)."""
    return F32(1.0) / (F32(1.0) + exp(-x))


@inlined
def tanh(x: Any) -> Any:
    """tanh within 1e-7, relative near 0 too."""
    y = x * x
    p = F32(-5.70498872745e-3)
    p = p * y + F32(2.06390887954e-2)
    p = p * y + F32(-5.37397155531e-2)
    p = p * y + F32(1.33314422036e-1)
    p = p * y + F32(-3.33332819422e-1)
    small = p * y * x + x
    size = abs(x)
    large = F32(1.0) - F32(2.0) / (exp(size + size) + F32(1.0))
    large = large if x > F32(0.0) else -large
    return small if size < F32(0.625) else large


@inlined
def positive(x: Any) -> Any:
    """minGRU's and minLSTM's g: x + 0.5 above zero, sigmoid(x) below."""
    return max(x, F32(0.0)) + sigmoid(min(x, F32(0.0)))


@inlined
def rank(x: Any) -> Any:
    """A whole number that grows with x; what is not a number ranks beyond both infinities.

    Compilers do not look for the highest of many floats in vector code, of whole numbers they do:
    a sixth of the time.
    """
    bits = F32(x).view(np.int32)
    return bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF))


@inlined
def ranked(rank: Any) -> Any:
    """The number of this rank."""
    return np.int32(rank ^ ((rank >> np.int32(31)) & np.int32(0x7FFFFFFF))).view(np.float32)


LOWEST = np.int32(-(2**31))
"""Below every rank."""


@compiled
def highest(row: Array) -> Any:
    """The highest number."""
    top = LOWEST
    for k in range(len(row)):
        top = max(top, rank(row[k]))
    return ranked(top)


# Products


@compiled
def add_product(w_NK: Array, scale_N: Array, x_BK: Array, out_BN: Array) -> None:
    """out += x w', each row of w times its scale; four rows at a time read x once."""
    num_rows, width = w_NK.shape
    fours = num_rows - num_rows % 4
    for b in range(len(x_BK)):
        x, out = x_BK[b], out_BN[b]
        for i in range(0, fours, 4):
            s0, s1, s2, s3 = F32(0.0), F32(0.0), F32(0.0), F32(0.0)
            for k in range(width):
                s0 += F32(w_NK[i, k]) * x[k]
                s1 += F32(w_NK[i + 1, k]) * x[k]
                s2 += F32(w_NK[i + 2, k]) * x[k]
                s3 += F32(w_NK[i + 3, k]) * x[k]
            out[i] += s0 * scale_N[i]
            out[i + 1] += s1 * scale_N[i + 1]
            out[i + 2] += s2 * scale_N[i + 2]
            out[i + 3] += s3 * scale_N[i + 3]
        for i in range(fours, num_rows):
            s = F32(0.0)
            for k in range(width):
                s += F32(w_NK[i, k]) * x[k]
            out[i] += s * scale_N[i]


@compiled
def product(w_NK: Array, scale_N: Array, bias_N: Array, x_BK: Array) -> Array:
    """x w' + bias."""
    out_BN = np.empty((len(x_BK), len(w_NK)), np.float32)
    for b in range(len(x_BK)):
        out_BN[b] = bias_N
    add_product(w_NK, scale_N, x_BK, out_BN)
    return out_BN


# One step of each cell: matrices W and U with their scales, bias, input, state


@compiled
def lstm_gates(gates: Array, c: Array) -> Array:
    """(h, c) from the gates' sums W x + U h + b."""
    num_rows, size = c.shape
    new_h, new_c = np.empty_like(c), np.empty_like(c)
    for b in range(num_rows):
        for k in range(size):
            i, f = sigmoid(gates[b, k]), sigmoid(gates[b, size + k])
            g, o = tanh(gates[b, 2 * size + k]), sigmoid(gates[b, 3 * size + k])
            new_c[b, k] = f * c[b, k] + i * g
            new_h[b, k] = o * tanh(new_c[b, k])
    return new_h, new_c


@compiled
def lstm_step(
    W: Array, w_scale: Array, U: Array, u_scale: Array, bias: Array, x: Array, h: Array, c: Array
) -> Array:
    """(h, c) after the step."""
    gates = product(W, w_scale, bias, x)
    add_product(U, u_scale, h, gates)
    return lstm_gates(gates, c)


@compiled
def gru_after_gates(gates: Array, inner: Array, h: Array) -> Array:
    """h from W x + b and U h + d, where the reset comes after the product."""
    num_rows, size = h.shape
    new_h = np.empty_like(h)
    for b in range(num_rows):
        for k in range(size):
            r = sigmoid(gates[b, k] + inner[b, k])
            u = sigmoid(gates[b, size + k] + inner[b, size + k])
            n = tanh(gates[b, 2 * size + k] + r * inner[b, 2 * size + k])
            new_h[b, k] = h[b, k] + u * (n - h[b, k])
    return new_h


@compiled
def gru_step(
    W: Array,
    w_scale: Array,
    U: Array,
    u_scale: Array,
    bias: Array,
    inner_bias: Array,
    x: Array,
    h: Array,
    reset_after: bool,
) -> Array:
    """h after the step, in either form."""
    gates = product(W, w_scale, bias, x)
    num_rows, size = h.shape
    split = 2 * size
    recurrent = np.zeros((num_rows, split), np.float32)
    add_product(U[:split], u_scale[:split], h, recurrent)
    r = np.empty_like(h)
    entering = np.empty_like(h)
    for b in range(num_rows):
        for k in range(size):
            r[b, k] = sigmoid(gates[b, k] + recurrent[b, k])
            entering[b, k] = h[b, k] if reset_after else r[b, k] * h[b, k]
    content = product(U[split:], u_scale[split:], inner_bias, entering)
    new_h = np.empty_like(h)
    for b in range(num_rows):
        for k in range(size):
            u = sigmoid(gates[b, size + k] + recurrent[b, size + k])
            inner = r[b, k] * content[b, k] if reset_after else content[b, k]
            n = tanh(gates[b, split + k] + inner)
            new_h[b, k] = h[b, k] + u * (n - h[b, k])
    return new_h


@compiled
def mingru_step(W: Array, w_scale: Array, bias: Array, x: Array, h: Array) -> Array:
    """(output, h) after the step."""
    gates = product(W, w_scale, bias, x)
    num_rows, size = h.shape
    new_h = np.empty_like(h)
    for b in range(num_rows):
        for k in range(size):
            u = sigmoid(gates[b, k])
            new_h[b, k] = h[b, k] + u * (positive(gates[b, size + k]) - h[b, k])
    return new_h, new_h


@compiled
def minlstm_step(W: Array, w_scale: Array, bias: Array, x: Array, h: Array) -> Array:
    """(output, h) after the step; i / (f + i) = (1 + e^-b) / (2 + e^-a + e^-b)."""
    gates = product(W, w_scale, bias, x)
    num_rows, size = h.shape
    new_h = np.empty_like(h)
    for b in range(num_rows):
        for k in range(size):
            low = max(F32(0.0), max(-gates[b, k], -gates[b, size + k]))
            one, i, f = exp(-low), exp(-gates[b, k] - low), exp(-gates[b, size + k] - low)
            share = (one + f) / (one + i + one + f)
            new_h[b, k] = h[b, k] + share * (positive(gates[b, 2 * size + k]) - h[b, k])
    return new_h, new_h


@compiled
def sru_step(W: Array, w_scale: Array, bias: Array, x: Array, c: Array) -> Array:
    """(output, c) after the step; x is carried by the fourth part of W, where there is one."""
    gates = product(W, w_scale, bias, x)
    num_rows, size = c.shape
    output, new_c = np.empty_like(c), np.empty_like(c)
    for b in range(num_rows):
        carried = x[b] if x.shape[1] == size else gates[b, 3 * size :]
        for k in range(size):
            n, f, r = gates[b, k], sigmoid(gates[b, size + k]), sigmoid(gates[b, 2 * size + k])
            new_c[b, k] = n + f * (c[b, k] - n)
            output[b, k] = carried[k] + r * (tanh(new_c[b, k]) - carried[k])
    return output, new_c


@compiled
def normalise(logits: Array) -> Array:
    """Logits become log probabilities, in place."""
    num_rows, size = logits.shape
    for b in range(num_rows):
        top, total = highest(logits[b]), 0.0
        for k in range(size):
            total += exp(logits[b, k] - top)
        shift = top + F32(np.log(total))
        for k in range(size):
            logits[b, k] -= shift
    return logits


@compiled
def log_softmax_step(V: Array, v_scale: Array, bias: Array, hidden: Array) -> Array:
    """Log probabilities over the vocabulary."""
    return normalise(product(V, v_scale, bias, hidden))


@compiled
def draw_tokens(scores: Array, draws: Array) -> Array:
    """The token at which each row's probabilities, added up, reach its draw in (0, 1].

    -1 where a row has no possible token. Draws lie above 0, so that what was ruled out is never
    drawn.
    """
    num_rows, size = scores.shape
    tokens = np.full(num_rows, -1, np.int64)
    weights = np.empty(size, np.float32)
    for b in range(num_rows):
        top = highest(scores[b])
        if not np.isfinite(top):
            continue
        for k in range(size):
            # exp is cut off at -87: what was ruled out must weigh nothing at all.
            below = scores[b, k] - top
            weights[k] = exp(below) if below > F32(-87.0) else F32(0.0)
        total = 0.0
        for k in range(size):
            total += weights[k]
        reached, goal = 0.0, draws[b] * total
        for k in range(size):
            if weights[k] > F32(0.0):
                reached += weights[k]
                tokens[b] = k
                if reached >= goal:
                    break
    return tokens


LSTM, GRU_AFTER, GRU_BEFORE, MINGRU, MINLSTM, SRU = range(6)
"""The kinds of cells that `model_step` knows."""


@compiled
def model_step(
    kind: int,
    embedding: Array,
    Ws: Array,
    w_scales: Array,
    Us: Array,
    u_scales: Array,
    biases: Array,
    inner_biases: Array,
    V: Array,
    v_scale: Array,
    v_bias: Array,
    tokens: Array,
    hs: Array,
    cs: Array,
    new_hs: Array,
    new_cs: Array,
) -> Array:
    """A whole model's step: log probabilities after `tokens`; the new states are filled in.

    What there is one of per layer comes as a tuple; `cs` and `new_cs` count for the LSTM alone.
    """
    x = np.empty((len(tokens), embedding.shape[1]), np.float32)
    for b in range(len(tokens)):
        if not 0 <= tokens[b] < len(embedding):
            raise IndexError("a token is not in the vocabulary")
        x[b] = embedding[tokens[b]]
    for layer in range(len(Ws)):
        W, w_scale, bias, h = Ws[layer], w_scales[layer], biases[layer], hs[layer]
        if kind == LSTM:
            new_h, new_c = lstm_step(W, w_scale, Us[layer], u_scales[layer], bias, x, h, cs[layer])
            new_cs[layer][:] = new_c
            x = new_h
        elif kind == MINGRU:
            x, new_h = mingru_step(W, w_scale, bias, x, h)
        elif kind == MINLSTM:
            x, new_h = minlstm_step(W, w_scale, bias, x, h)
        elif kind == SRU:
            x, new_h = sru_step(W, w_scale, bias, x, h)
        else:
            inner, after = inner_biases[layer], kind == GRU_AFTER
            U, u_scale = Us[layer], u_scales[layer]
            new_h = gru_step(W, w_scale, U, u_scale, bias, inner, x, h, after)
            x = new_h
        new_hs[layer][:] = new_h
    return log_softmax_step(V, v_scale, v_bias, x)
