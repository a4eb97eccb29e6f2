"""The elementwise parts of a step of an LSTM with extras, in Triton (`stepwise.py`).

Each is one launch over all numbers of a step; arithmetic is in float32. N numbers, B batch, H
hidden units.
"""

from __future__ import annotations

import torch
from torch import Tensor

from elman.nn.kernels.persistent_launch import on_device
from elman.nn.kernels.persistent_loops import tl, triton

BLOCK = 512


def gated(scores: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Return 2 sigmoid(scores) * vectors, and sigmoid(scores)."""
    result, gates = torch.empty_like(vectors), torch.empty_like(scores)
    _launch(_gated, scores.numel(), scores, vectors, result, gates)
    return result, gates


def gated_slopes(slopes: Tensor, gates: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of scores and vectors."""
    to_scores, to_vectors = torch.empty_like(gates), torch.empty_like(vectors)
    _launch(_gated_slopes, gates.numel(), slopes, gates, vectors, to_scores, to_vectors)
    return to_scores, to_vectors


def cell(gates_BG: Tensor, c_BH: Tensor, cap_input: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output, the new cell, and the values of the gates."""
    h_BH = c_BH.new_empty(c_BH.shape, dtype=gates_BG.dtype)
    new_BH, values_BG = torch.empty_like(c_BH), torch.empty_like(gates_BG)
    given = (gates_BG, c_BH, h_BH, new_BH, values_BG)
    _launch(_cell, c_BH.numel(), *given, H=c_BH.shape[1], CAP=cap_input)
    return h_BH, new_BH, values_BG


def cell_slopes(
    to_h_BH: Tensor,
    to_new_BH: Tensor,
    values_BG: Tensor,
    c_BH: Tensor,
    new_BH: Tensor,
    cap_input: bool,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the gates' sums and of the old cell."""
    to_gates_BG, to_c_BH = torch.empty_like(values_BG), torch.empty_like(c_BH)
    given = (to_h_BH, to_new_BH, values_BG, c_BH, new_BH, to_gates_BG, to_c_BH)
    _launch(_cell_slopes, c_BH.numel(), *given, H=c_BH.shape[1], CAP=cap_input)
    return to_gates_BG, to_c_BH


def _launch(kernel, count: int, *tensors: Tensor, **constants: int):  # type: ignore[no-untyped-def]
    with on_device(tensors[0].device.index):
        kernel[(triton.cdiv(count, BLOCK),)](*tensors, count, **constants, BLOCK=BLOCK)


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _gates(values, at, real, H: tl.constexpr):
    """Load the gates i, f, g and o: i lies at `at`, each of the others H numbers further."""
    i = tl.load(values + at, mask=real, other=0).to(tl.float32)
    f = tl.load(values + at + H, mask=real, other=0).to(tl.float32)
    g = tl.load(values + at + 2 * H, mask=real, other=0).to(tl.float32)
    o = tl.load(values + at + 3 * H, mask=real, other=0).to(tl.float32)
    return i, f, g, o


@triton.jit
def _store_gates(values, at, real, i, f, g, o, H: tl.constexpr):
    """Store the gates, or their gradients, where `_gates` reads them."""
    KIND: tl.constexpr = values.dtype.element_ty
    tl.store(values + at, i.to(KIND), mask=real)
    tl.store(values + at + H, f.to(KIND), mask=real)
    tl.store(values + at + 2 * H, g.to(KIND), mask=real)
    tl.store(values + at + 3 * H, o.to(KIND), mask=real)


@triton.jit
def _new_cell(i, f, g, c, CAP: tl.constexpr):
    used = i
    if CAP:
        used = tl.minimum(i, 1 - f)
    return f * c + used * g


@triton.jit
def _gate_slopes(i, f, g, o, c, shown, to_h, to_c, CAP: tl.constexpr):
    """The gradients of the gates' sums, from that of the output h = o * shown and that of the new
    cell; `c` is the old cell, `shown` the tanh of the new one."""
    to_f = to_c * c
    to_i = to_c * g
    used = i
    if CAP:
        capped = i > 1 - f
        used = tl.where(capped, 1 - f, i)
        to_f = tl.where(capped, to_f - to_i, to_f)
        to_i = tl.where(capped, 0.0, to_i)
    to_g = to_c * used * (1 - g * g)
    return to_i * i * (1 - i), to_f * f * (1 - f), to_g, to_h * shown * o * (1 - o)


@triton.jit
def _gated(scores, vectors, result, gates, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = at < N
    gate = tl.sigmoid(tl.load(scores + at, mask=real, other=0).to(tl.float32))
    vector = tl.load(vectors + at, mask=real, other=0).to(tl.float32)
    tl.store(result + at, (2 * gate * vector).to(result.dtype.element_ty), mask=real)
    tl.store(gates + at, gate.to(gates.dtype.element_ty), mask=real)


@triton.jit
def _gated_slopes(slopes, gates, vectors, to_scores, to_vectors, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = at < N
    slope = tl.load(slopes + at, mask=real, other=0).to(tl.float32)
    gate = tl.load(gates + at, mask=real, other=0).to(tl.float32)
    vector = tl.load(vectors + at, mask=real, other=0).to(tl.float32)
    to_vector = 2 * gate * slope
    tl.store(to_vectors + at, to_vector.to(to_vectors.dtype.element_ty), mask=real)
    to_score = to_vector * vector * (1 - gate)
    tl.store(to_scores + at, to_score.to(to_scores.dtype.element_ty), mask=real)


@triton.jit
def _cell(
    gates, cells, h, new_cells, values, N, H: tl.constexpr, CAP: tl.constexpr, BLOCK: tl.constexpr
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = at < N
    gate = (at // H) * (4 * H) + at % H
    i, f, g, o = _gates(gates, gate, real, H)
    i, f, g, o = tl.sigmoid(i), tl.sigmoid(f), _tanh(g), tl.sigmoid(o)
    new = _new_cell(i, f, g, tl.load(cells + at, mask=real, other=0), CAP)
    tl.store(new_cells + at, new, mask=real)
    tl.store(h + at, (o * _tanh(new)).to(h.dtype.element_ty), mask=real)
    _store_gates(values, gate, real, i, f, g, o, H)


@triton.jit
def _cell_slopes(
    to_h,
    to_new,
    values,
    cells,
    new_cells,
    to_gates,
    to_cells,
    N,
    H: tl.constexpr,
    CAP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = at < N
    gate = (at // H) * (4 * H) + at % H
    i, f, g, o = _gates(values, gate, real, H)
    to_shown = tl.load(to_h + at, mask=real, other=0).to(tl.float32)
    shown = _tanh(tl.load(new_cells + at, mask=real, other=0))
    to_c = tl.load(to_new + at, mask=real, other=0) + to_shown * o * (1 - shown * shown)
    c = tl.load(cells + at, mask=real, other=0)
    to_i, to_f, to_g, to_o = _gate_slopes(i, f, g, o, c, shown, to_shown, to_c, CAP)
    _store_gates(to_gates, gate, real, to_i, to_f, to_g, to_o, H)
    tl.store(to_cells + at, to_c * f, mask=real)
