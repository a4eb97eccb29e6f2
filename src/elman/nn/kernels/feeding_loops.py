"""A decoder's step without its products of large matrices, in Triton (`feeding.py`).

A launch is one of few per step: the LSTM's gates, attention as a whole, and for each the gradient.
Arithmetic is in float32. A row of a batch is one program of attention: it reads the keys and the
memory of its own source once.

B batch, S source steps, X keys (as wide as H, hidden units), M memory, R readout, G gates times H;
z is [fed; h], (B, R + H), and y is [context; h], (B, M + H).
"""

from __future__ import annotations

import torch
from torch import Tensor

from elman.nn.kernels.persistent_launch import on_device
from elman.nn.kernels.persistent_loops import tl, triton
from elman.nn.kernels.stepwise_loops import _cell_slopes, _tanh

BLOCK = 512
LONGEST_SOURCE = 512
"""Attention holds the scores of a whole source."""
TILE = 8192
"""Numbers of keys or of memory that a program holds at a time."""


def cell(gates_BG: Tensor, c_BH: Tensor, new_BH: Tensor, z_BZ: Tensor, y_BY: Tensor) -> None:
    """From the gates' sums and the old cell to the new cell and to h, at the end of `z_BZ` and of
    `y_BY`; the sums become the values of the gates."""
    num_rows, size = c_BH.shape
    numbers = num_rows * size
    with on_device(c_BH.device.index):
        _cell[(triton.cdiv(numbers, BLOCK),)](
            *(gates_BG, c_BH, new_BH, z_BZ, y_BY, numbers),
            *(z_BZ.shape[1], y_BY.shape[1]),
            H=size,
            BLOCK=BLOCK,
        )


def cell_slopes(
    to_h_BH: Tensor,
    to_c_BH: Tensor,
    values_BG: Tensor,
    c_BH: Tensor,
    new_BH: Tensor,
    to_gates_BG: Tensor,
) -> None:
    """Write the gradient of the gates' sums; that of the new cell becomes that of the old one."""
    numbers = c_BH.numel()
    with on_device(c_BH.device.index):
        _cell_slopes[(triton.cdiv(numbers, BLOCK),)](
            *(to_h_BH, to_c_BH, values_BG, c_BH, new_BH, to_gates_BG, to_c_BH, numbers),
            H=c_BH.shape[1],
            CAP=False,
            BLOCK=BLOCK,
        )


def attend(
    y_BY: Tensor, keys_BSX: Tensor, memory_BSM: Tensor, mask_BS: Tensor, weights_BS: Tensor
) -> None:
    """From h at the end of `y_BY` to the attention weights, and to the context at its beginning."""
    num_rows, length, size = memory_BSM.shape
    with on_device(y_BY.device.index):
        _attend[(num_rows,)](
            *(y_BY, keys_BSX, memory_BSM, mask_BS.view(torch.uint8), weights_BS),
            *(length, keys_BSX.shape[2], size),
            **_tiles(length),
        )


def attend_slopes(
    to_y_BY: Tensor,
    to_z_BZ: Tensor,
    keys_BSX: Tensor,
    memory_BSM: Tensor,
    weights_BS: Tensor,
    to_scores_BS: Tensor,
    to_h_BH: Tensor,
) -> None:
    """Write the gradient of the scores, and that of h: by attention, by y and by the next step's
    z."""
    num_rows, length, size = memory_BSM.shape
    with on_device(to_y_BY.device.index):
        _attend_slopes[(num_rows,)](
            *(to_y_BY, to_z_BZ, keys_BSX, memory_BSM, weights_BS, to_scores_BS, to_h_BH),
            *(length, keys_BSX.shape[2], size, to_z_BZ.shape[1]),
            **_tiles(length),
        )


def readout_slopes(
    to_vectors_BR: Tensor, to_z_BZ: Tensor, z_BZ: Tensor, to_sums_BR: Tensor
) -> None:
    """Write the gradient before the tanh of the vectors at the beginning of `z_BZ`."""
    numbers = to_sums_BR.numel()
    with on_device(z_BZ.device.index):
        _readout_slopes[(triton.cdiv(numbers, BLOCK),)](
            *(to_vectors_BR, to_z_BZ, z_BZ, to_sums_BR, numbers),
            *(to_sums_BR.shape[1], z_BZ.shape[1]),
            BLOCK=BLOCK,
        )


def _tiles(length: int) -> dict[str, int]:
    steps = max(16, triton.next_power_of_2(length))
    return {"STEPS": steps, "WIDTH": min(128, TILE // steps), "num_warps": 8}


@triton.jit
def _cell(gates, cells, new_cells, z, y, N, Z, Y, H: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = at < N
    row, unit = at // H, at % H
    gate = gates + row * (4 * H) + unit
    i = tl.sigmoid(tl.load(gate, mask=real, other=0).to(tl.float32))
    f = tl.sigmoid(tl.load(gate + H, mask=real, other=0).to(tl.float32))
    g = _tanh(tl.load(gate + 2 * H, mask=real, other=0).to(tl.float32))
    o = tl.sigmoid(tl.load(gate + 3 * H, mask=real, other=0).to(tl.float32))
    new = f * tl.load(cells + at, mask=real, other=0) + i * g
    tl.store(new_cells + at, new, mask=real)
    KIND: tl.constexpr = gates.dtype.element_ty
    h = (o * _tanh(new)).to(KIND)
    tl.store(z + row * Z + (Z - H) + unit, h, mask=real)
    tl.store(y + row * Y + (Y - H) + unit, h, mask=real)
    tl.store(gate, i.to(KIND), mask=real)
    tl.store(gate + H, f.to(KIND), mask=real)
    tl.store(gate + 2 * H, g.to(KIND), mask=real)
    tl.store(gate + 3 * H, o.to(KIND), mask=real)


@triton.jit
def _attend(y, keys, memory, mask, weights, S, X, M, STEPS: tl.constexpr, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    y += row * (M + X)
    steps, columns = tl.arange(0, STEPS), tl.arange(0, WIDTH)
    is_step = steps < S
    source = row * S + steps
    scores = tl.zeros([STEPS], tl.float32)
    for first in range(0, X, WIDTH):
        x = first + columns
        q = tl.load(y + M + x, mask=x < X, other=0).to(tl.float32)
        real = is_step[:, None] & (x < X)[None, :]
        k = tl.load(keys + source[:, None] * X + x[None, :], mask=real, other=0).to(tl.float32)
        scores += tl.sum(k * q[None, :], 1)
    seen = tl.load(mask + source, mask=is_step, other=0) != 0
    scores = tl.where(seen, scores, -1e30)  # A finite minimum: inf - inf would be NaN.
    exps = tl.where(seen, tl.exp(scores - tl.max(scores, 0)), 0.0)
    shares = exps / tl.maximum(tl.sum(exps, 0), 1e-30)
    tl.store(weights + source, shares, mask=is_step)
    for first in range(0, M, WIDTH):
        m = first + columns
        real = is_step[:, None] & (m < M)[None, :]
        v = tl.load(memory + source[:, None] * M + m[None, :], mask=real, other=0).to(tl.float32)
        context = tl.sum(v * shares[:, None], 0)
        tl.store(y + m, context.to(y.dtype.element_ty), mask=m < M)


@triton.jit
def _attend_slopes(
    to_y,
    to_z,
    keys,
    memory,
    weights,
    to_scores,
    to_h,
    S,
    X,
    M,
    Z,
    STEPS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    to_y += row * (M + X)
    to_z += row * Z + (Z - X)
    steps, columns = tl.arange(0, STEPS), tl.arange(0, WIDTH)
    is_step = steps < S
    source = row * S + steps
    to_shares = tl.zeros([STEPS], tl.float32)
    for first in range(0, M, WIDTH):
        m = first + columns
        real = is_step[:, None] & (m < M)[None, :]
        v = tl.load(memory + source[:, None] * M + m[None, :], mask=real, other=0).to(tl.float32)
        slope = tl.load(to_y + m, mask=m < M, other=0).to(tl.float32)
        to_shares += tl.sum(v * slope[None, :], 1)
    shares = tl.load(weights + source, mask=is_step, other=0)
    slopes = shares * (to_shares - tl.sum(shares * to_shares, 0))
    tl.store(to_scores + source, slopes.to(to_scores.dtype.element_ty), mask=is_step)
    for first in range(0, X, WIDTH):
        x = first + columns
        real = is_step[:, None] & (x < X)[None, :]
        k = tl.load(keys + source[:, None] * X + x[None, :], mask=real, other=0).to(tl.float32)
        total = tl.sum(k * slopes[:, None], 0)
        total += tl.load(to_y + M + x, mask=x < X, other=0).to(tl.float32)
        total += tl.load(to_z + x, mask=x < X, other=0).to(tl.float32)
        tl.store(to_h + row * X + x, total, mask=x < X)


@triton.jit
def _readout_slopes(to_vectors, to_z, z, to_sums, N, R, Z, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = at < N
    inside = at // R * Z + at % R
    slope = tl.load(to_vectors + at, mask=real, other=0).to(tl.float32)
    slope += tl.load(to_z + inside, mask=real, other=0).to(tl.float32)
    value = tl.load(z + inside, mask=real, other=0).to(tl.float32)
    found = slope * (1 - value * value)
    tl.store(to_sums + at, found.to(to_sums.dtype.element_ty), mask=real)
