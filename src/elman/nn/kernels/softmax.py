"""Softmax of a chunk of logits, in place, on torch's threads (`team.py`).

torch has max, difference, exponential and sum as four passes over memory; here a row is read once
and written once, with the bias added. Logits in bfloat16 become their gradients, also in bfloat16;
what is between is float32, a row at a time. Without gradients, no logits are kept at all: some rows
are multiplied by a panel of the matrix (`blocks.py`) and summed while they are in the cache.

N rows, V vocabulary, H hidden.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from elman.nn.kernels import blocks, mkl
from elman.nn.kernels.blocks import panel_width
from elman.nn.kernels.loops import F32, LOWEST, exp, halved, rank, ranked, widened
from elman.nn.kernels.mkl import brgemm_bfloat16, brgemm_float32, brgemm_release
from elman.nn.kernels.products import ONEDNN, fastest
from elman.nn.kernels.team import (
    Floats1,
    Floats2,
    Floats3,
    Halves2,
    Int64s,
    pooled_loop,
)
from elman.nn.shapes import Float, Int

ROWS_PER_PART = 8
"""Rows that are worth handing to a thread."""
ROWS_AT_ONCE = 128
"""Rows that a thread multiplies by a panel of the matrix before the next one, without gradients."""
FEWEST_ROWS = 64
"""Rows for which packing the matrix pays: a short text would take up to four times as long."""
MOST_PACKED_BYTES = 1 << 28
"""The largest matrix that `scores` packs: a copy, which for 800,000 words takes gigabytes."""
MEASURED_WORDS = 4096
"""Columns of a product that is measured, for as many words and for more."""


def serves(logits_NV: Float[Tensor, "N V"]) -> bool:
    """Whether the loop can run: float32 on a CPU, with numba and MKL."""
    return logits_NV.device.type == "cpu" and logits_NV.dtype == torch.float32 and mkl.available()


def exponentials(
    logits_NV: Float[Tensor, "N V"], bias_V: Float[Tensor, "V"] | None
) -> tuple[Float[Tensor, "N 1"], Float[Tensor, "N 1"]]:
    """Logits, the bias added, become e to the logit minus the row's highest, in place.

    Returns the highest logits and the sums of what has become of the rows.
    """
    num_rows, vocab_size = logits_NV.shape
    bias = logits_NV.new_zeros(vocab_size) if bias_V is None else bias_V.detach()
    highest_N, sums_N = logits_NV.new_empty(num_rows), logits_NV.new_empty(num_rows)
    num_parts = max(1, min(torch.get_num_threads(), num_rows // ROWS_PER_PART))
    _rows(
        num_rows=num_rows,
        num_parts=num_parts,
        logits_NV=logits_NV,
        bias_V=bias.contiguous(),
        highest_N=highest_N,
        sums_N=sums_N,
    )
    return highest_N.unsqueeze(1), sums_N.unsqueeze(1)


def serves_halves(hidden_NH: Float[Tensor, "N H"]) -> bool:
    """Whether `to_slopes` can run: bfloat16 on a CPU, with numba and MKL."""
    return hidden_NH.device.type == "cpu" and hidden_NH.dtype == torch.bfloat16 and mkl.available()


def to_slopes(
    logits_NV: Float[Tensor, "N V"],
    bias_V: Float[Tensor, "V"] | None,
    targets_N: Int[Tensor, "N"],
    weights_N: Float[Tensor, "N"],
    smoothing: float = 0.0,
) -> tuple[Float[Tensor, "N"], Float[Tensor, "N"], Float[Tensor, "V"]]:
    """Logits in bfloat16, the bias added, become the gradient of the weighted sum of the targets'
    log probabilities, in place; with `smoothing`, that share of each is the mean over all words.
    Returns the targets' log probabilities, their means over the vocabulary, and the sum of the
    gradients, in float32.
    """
    num_rows, vocab_size = logits_NV.shape
    if num_rows and not 0 <= int(targets_N.min()) <= int(targets_N.max()) < vocab_size:
        raise IndexError("a target is not in the vocabulary")
    bias = torch.zeros(vocab_size) if bias_V is None else bias_V.detach().float()
    num_parts = max(1, min(torch.get_num_threads(), num_rows // ROWS_PER_PART))
    logprobs_N, means_N = torch.empty(num_rows), torch.empty(num_rows)
    sums = torch.zeros(num_parts, vocab_size)
    _half_rows(
        num_rows=num_rows,
        num_parts=num_parts,
        logits_NV=logits_NV,
        bias_V=bias.contiguous(),
        targets_N=targets_N.contiguous(),
        weights_N=weights_N.float().contiguous(),
        shares=torch.tensor([1 - smoothing, smoothing / vocab_size]),
        logprobs_N=logprobs_N,
        means_N=means_N,
        scratch=torch.empty(num_parts, vocab_size),
        sums=sums,
    )
    return logprobs_N, means_N, sums.sum(0)


def serves_scores(hidden_NH: Float[Tensor, "N H"], weight_VH: Float[Tensor, "V H"]) -> bool:
    """Whether `scores` can run, and is as fast as products of all rows: in bfloat16 where the
    processor has it, in float32 where oneDNN multiplies faster than MKL."""
    if weight_VH.device.type != "cpu" or weight_VH.dtype != torch.float32 or not weight_VH.numel():
        return False
    if len(hidden_NH) < FEWEST_ROWS or 4 * weight_VH.numel() > MOST_PACKED_BYTES:
        return False
    if torch.is_autocast_enabled("cpu"):
        return torch.get_autocast_dtype("cpu") == torch.bfloat16 and not blocks.problem()
    if hidden_NH.dtype != torch.float32 or not mkl.available():
        return False
    vocab_size, size = weight_VH.shape
    return fastest(ROWS_AT_ONCE, size, min(vocab_size, MEASURED_WORDS)) == ONEDNN


def scores(
    hidden_NH: Float[Tensor, "N H"],
    weight_VH: Float[Tensor, "V H"],
    bias_V: Float[Tensor, "V"] | None,
    targets_N: Int[Tensor, "N"],
) -> Float[Tensor, "N"]:
    """The targets' log probabilities in float32, without gradients; products are in bfloat16 under
    autocast."""
    (num_rows, size), vocab_size = hidden_NH.shape, len(weight_VH)
    if num_rows and not 0 <= int(targets_N.min()) <= int(targets_N.max()) < vocab_size:
        raise IndexError("a target is not in the vocabulary")
    half = torch.is_autocast_enabled("cpu")
    num_threads = torch.get_num_threads()
    num_parts = max(1, min(num_threads, num_rows // ROWS_PER_PART))
    left = hidden_NH.detach().to(torch.bfloat16 if half else torch.float32)
    if half and size % 2:
        left = torch.nn.functional.pad(left, (0, 1))
    left = left.contiguous()
    panels = blocks.Panels([weight_VH], transposed=True, num_threads=num_threads, half=half)
    bias = torch.zeros(vocab_size) if bias_V is None else bias_V.detach().float()
    logprobs_N = torch.empty(num_rows)
    _scores(
        num_rows=num_rows,
        num_parts=num_parts,
        left=left.data_ptr(),
        inner=left.shape[1],
        panels=panels.addresses[0],
        half=int(half),
        bias_V=bias.contiguous(),
        targets_N=targets_N.contiguous(),
        logprobs_N=logprobs_N,
        tops=torch.empty(num_parts, ROWS_AT_ONCE),
        sums=torch.empty(num_parts, ROWS_AT_ONCE),
        scratch=torch.empty(num_parts, ROWS_AT_ONCE, min(vocab_size, blocks.WIDEST)),
    )
    return logprobs_N


@pooled_loop
def _scores(
    left: int,
    inner: int,
    panels: int,
    half: int,
    bias_V: Floats1,
    targets_N: Int64s,
    logprobs_N: Floats1,
    tops: Floats2,
    sums: Floats2,
    scratch: Floats3,
    part: int,
    first: int,
    last: int,
) -> None:
    """`logprobs_N` holds the targets' logits until the sums of their rows are known."""
    vocab_size, logits_nv = len(bias_V), scratch[part]
    num_bytes, width = (2, panel_width(inner)) if half else (4, panel_width(2 * inner))
    stride = logits_nv.shape[1]
    for start in range(first, last, ROWS_AT_ONCE):
        rows = min(ROWS_AT_ONCE, last - start)
        rows_address = left + num_bytes * start * inner
        highest, totals = tops[part], sums[part]
        highest[:rows] = -np.inf
        totals[:rows] = F32(0.0)
        for begin in range(0, vocab_size, width):
            own = min(width, vocab_size - begin)
            panel = panels + num_bytes * begin * inner
            out = logits_nv.ctypes.data
            if half:
                brgemm_bfloat16(
                    rows, own, inner, inner, own, stride, 0, rows_address, panel, out, 1
                )
            else:
                brgemm_float32(rows, own, inner, inner, own, stride, 0, rows_address, panel, out, 0)
            bias = bias_V[begin : begin + own]
            for n in range(rows):
                row, top = logits_nv[n, :own], rank(highest[n])
                for k in range(own):
                    logit = row[k] + bias[k]
                    row[k] = logit
                    top = max(top, rank(logit))
                if begin <= targets_N[start + n] < begin + own:
                    logprobs_N[start + n] = row[targets_N[start + n] - begin]
                new = ranked(top)
                if new == -np.inf:  # no word so far is possible: inf - inf would be NaN
                    continue
                total = F32(0.0)
                for k in range(own):
                    total += exp(row[k] - new)
                totals[n] = totals[n] * exp(highest[n] - new) + total
                highest[n] = new
        for n in range(rows):
            logprobs_N[start + n] -= highest[n] + np.log(totals[n])
    brgemm_release(1)


@pooled_loop
def _half_rows(
    logits_NV: Halves2,
    bias_V: Floats1,
    targets_N: Int64s,
    weights_N: Floats1,
    shares: Floats1,
    logprobs_N: Floats1,
    means_N: Floats1,
    scratch: Floats2,
    sums: Floats2,
    part: int,
    first: int,
    last: int,
) -> None:
    vocab_size = len(bias_V)
    row, own_sums = scratch[part], sums[part]
    for n in range(first, last):
        halves = logits_NV[n]
        top, mean = LOWEST, F32(0.0)
        for k in range(vocab_size):
            logit = widened(halves[k]) + bias_V[k]
            row[k] = logit
            mean += logit
            top = max(top, rank(logit))
        highest, target = ranked(top), targets_N[n]
        chosen = row[target]
        total = F32(0.0)
        for k in range(vocab_size):
            row[k] = exp(row[k] - highest)
            total += row[k]
        norm = highest + np.log(total)
        logprobs_N[n] = chosen - norm
        means_N[n] = mean / F32(vocab_size) - norm
        weight = weights_N[n]
        scale, spread = -weight / total, weight * shares[1]
        row[target] -= total * shares[0]
        for k in range(vocab_size):
            slope = row[k] * scale + spread
            halves[k] = halved(slope)
            own_sums[k] += slope


@pooled_loop
def _rows(
    logits_NV: Floats2,
    bias_V: Floats1,
    highest_N: Floats1,
    sums_N: Floats1,
    first: int,
    last: int,
) -> None:
    vocab_size = len(bias_V)
    for n in range(first, last):
        row = logits_NV[n]
        top = LOWEST
        for k in range(vocab_size):
            logit = row[k] + bias_V[k]
            row[k] = logit
            top = max(top, rank(logit))
        highest = ranked(top)
        total = F32(0.0)
        for k in range(vocab_size):
            row[k] = exp(row[k] - highest)
            total += row[k]
        highest_N[n] = highest
        sums_N[n] = total
