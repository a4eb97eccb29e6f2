"""The update of dynamic evaluation (`models/dynamic.py`), in place:

    w <- w - rate g / (RMS + epsilon) + min(1, decay RMS / mean RMS) (w_0 - w)

torch has it as five passes over memory. The loops here, for float32 on a CPU, read and write every
number once; the gradient of a matrix, a product of few columns, is never stored.

W weights, C tokens, G rows and I columns of a matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from elman.nn.kernels import mkl
from elman.nn.kernels.loops import F32, Array, compiled, exp
from elman.nn.kernels.team import Floats1, Floats2, Floats3, Int64s, pooled_loop

NUMBERS_PER_PART = 1 << 14
"""Weights that are worth handing to a thread."""


@dataclass(frozen=True)
class Step:
    """The numbers of the update."""

    rate: float
    epsilon: float
    pull: float
    """decay / mean RMS."""

    def array(self) -> Tensor:
        return torch.tensor([self.rate, self.epsilon, self.pull], dtype=torch.float32)


def serves(weights: Tensor) -> bool:
    """Whether the loops can run: float32 on a CPU, with numba and MKL."""
    return weights.device.type == "cpu" and weights.dtype == torch.float32 and mkl.available()


def move(now: Tensor, gradient: Tensor, trained: Tensor, rms: Tensor, step: Step) -> None:
    """Update weights of any shape, contiguous in memory."""
    if not serves(now):
        pulls = (step.pull * rms).clamp_(max=1.0)
        change = (trained - now).mul_(pulls)
        change.addcdiv_(gradient, rms + step.epsilon, value=-step.rate)
        now.add_(change)
        return
    _each(
        num_rows=now.numel(),
        num_parts=_parts(now.numel()),
        now_W=now.view(-1),
        gradient_W=gradient.contiguous().view(-1),
        trained_W=trained.view(-1),
        rms_W=rms.view(-1),
        numbers=step.array(),
    )


def move_product(
    now_GI: Tensor,
    slopes_CG: Tensor,
    vectors_CI: Tensor,
    trained_GI: Tensor,
    rms_GI: Tensor,
    step: Step,
) -> None:
    """Update a matrix whose gradient is slopes^T vectors."""
    _products(
        num_rows=len(now_GI),
        num_parts=_parts(now_GI.numel()),
        now_GI=now_GI,
        slopes_CG=slopes_CG.contiguous(),
        vectors_CI=vectors_CI.contiguous(),
        trained_GI=trained_GI,
        rms_GI=rms_GI,
        numbers=step.array(),
    )


class Factors(NamedTuple):
    """A matrix's gradient is slopes^T vectors."""

    slopes_CG: Tensor
    vectors_CI: Tensor


def read_softmax(
    now_VH: Tensor,
    trained_VH: Tensor,
    rms_VH: Tensor,
    bias_V: Tensor,
    left: Factors,
    moved_V: Tensor,
    vectors_CH: Tensor,
    targets_C: Tensor,
    step: Step,
) -> tuple[Tensor, Tensor, Tensor]:
    """Update the matrix of a softmax as `move_product` would with `left`, but for rows that have
    moved already, and read it, in one pass over memory.

    Returns the targets' log probabilities (C), the slopes of the negated mean of them (C, V), and
    the gradient of the vectors (C, H).
    """
    num_tokens, size = vectors_CH.shape
    num_parts = _parts(now_VH.numel())
    logits_CV = now_VH.new_empty(num_tokens, len(now_VH))
    highest_PC, sums_PC = now_VH.new_empty(2, num_parts, num_tokens)
    sums_PCH = now_VH.new_empty(num_parts, num_tokens, size)
    _read(
        num_rows=len(now_VH),
        num_parts=num_parts,
        now_VH=now_VH,
        trained_VH=trained_VH,
        rms_VH=rms_VH,
        bias_V=bias_V.contiguous(),
        slopes_DV=left.slopes_CG,
        left_DH=left.vectors_CI,
        moved_V=moved_V,
        vectors_CH=vectors_CH,
        logits_CV=logits_CV,
        highest_PC=highest_PC,
        sums_PC=sums_PC,
        sums_PCH=sums_PCH,
        numbers=step.array(),
    )
    # The sums of parts are relative to the highest logit of each.
    highest_C = highest_PC.max(dim=0).values
    shares_PC = (highest_PC - highest_C).exp_()
    norms_C = (sums_PC * shares_PC).sum(dim=0)
    at = targets_C[:, None]
    logprobs_C = logits_CV.gather(1, at)[:, 0] - highest_C - norms_C.log()
    to_vectors_CH = (sums_PCH * shares_PC[:, :, None]).sum(dim=0) / norms_C[:, None]
    to_vectors_CH = (to_vectors_CH - now_VH[targets_C]) / num_tokens
    slopes_CV = logits_CV.sub_(highest_C[:, None]).exp_().mul_(1 / (num_tokens * norms_C[:, None]))
    slopes_CV.scatter_add_(1, at, slopes_CV.new_full(at.shape, -1 / num_tokens))
    return logprobs_C, slopes_CV, to_vectors_CH


def _parts(size: int) -> int:
    return max(1, min(torch.get_num_threads(), size // NUMBERS_PER_PART))


@pooled_loop
def _each(
    now_W: Floats1,
    gradient_W: Floats1,
    trained_W: Floats1,
    rms_W: Floats1,
    numbers: Floats1,
    first: int,
    last: int,
) -> None:
    rate, epsilon, pull = numbers[0], numbers[1], numbers[2]
    for i in range(first, last):
        back = min(pull * rms_W[i], F32(1.0)) * (trained_W[i] - now_W[i])
        now_W[i] += back - rate * gradient_W[i] / (rms_W[i] + epsilon)


@pooled_loop
def _products(
    now_GI: Floats2,
    slopes_CG: Floats2,
    vectors_CI: Floats2,
    trained_GI: Floats2,
    rms_GI: Floats2,
    numbers: Floats1,
    first: int,
    last: int,
) -> None:
    rate, epsilon, pull = numbers[0], numbers[1], numbers[2]
    gradient_I = np.empty(now_GI.shape[1], np.float32)
    for g in range(first, last):
        now_I, trained_I, rms_I = now_GI[g], trained_GI[g], rms_GI[g]
        _move_row(
            now_I, trained_I, rms_I, slopes_CG, vectors_CI, g, gradient_I, rate, epsilon, pull
        )


@compiled
def _move_row(
    now_I: Array,
    trained_I: Array,
    rms_I: Array,
    slopes_CG: Array,
    vectors_CI: Array,
    g: int,
    gradient_I: Array,
    rate: Any,
    epsilon: Any,
    pull: Any,
) -> None:
    num_tokens, size = vectors_CI.shape
    rest = num_tokens % 4
    for k in range(size):
        gradient_I[k] = F32(0.0)
    for c in range(rest):
        slope = slopes_CG[c, g]
        for k in range(size):
            gradient_I[k] += slope * vectors_CI[c, k]
    # Four tokens at once: the gradient is read and written less often.
    for c in range(rest, num_tokens, 4):
        one, two = slopes_CG[c, g], slopes_CG[c + 1, g]
        three, four = slopes_CG[c + 2, g], slopes_CG[c + 3, g]
        v, w, x, y = vectors_CI[c], vectors_CI[c + 1], vectors_CI[c + 2], vectors_CI[c + 3]
        for k in range(size):
            gradient_I[k] += one * v[k] + two * w[k] + three * x[k] + four * y[k]
    for k in range(size):
        back = min(pull * rms_I[k], F32(1.0)) * (trained_I[k] - now_I[k])
        now_I[k] += back - rate * gradient_I[k] / (rms_I[k] + epsilon)


ROWS_AT_ONCE = 16
"""Rows of the output matrix that stay in the cache from their update to their last product."""


@pooled_loop
def _read(
    now_VH: Floats2,
    trained_VH: Floats2,
    rms_VH: Floats2,
    bias_V: Floats1,
    slopes_DV: Floats2,
    left_DH: Floats2,
    moved_V: Int64s,
    vectors_CH: Floats2,
    logits_CV: Floats2,
    highest_PC: Floats2,
    sums_PC: Floats2,
    sums_PCH: Floats3,
    numbers: Floats1,
    part: int,
    first: int,
    last: int,
) -> None:
    rate, epsilon, pull = numbers[0], numbers[1], numbers[2]
    num_tokens, size = vectors_CH.shape
    gradient_H = np.empty(size, np.float32)
    weights = np.empty(ROWS_AT_ONCE, np.float32)
    highest_PC[part] = -np.inf
    sums_PC[part] = F32(0.0)
    sums_PCH[part] = F32(0.0)
    for start in range(first, last, ROWS_AT_ONCE):
        stop = min(start + ROWS_AT_ONCE, last)
        for v in range(start, stop):
            if moved_V[v] == 0:
                now_H, trained_H, rms_H = now_VH[v], trained_VH[v], rms_VH[v]
                _move_row(
                    now_H, trained_H, rms_H, slopes_DV, left_DH, v, gradient_H, rate, epsilon, pull
                )
        for v in range(start, stop):
            _logits(now_VH[v], vectors_CH, bias_V[v], logits_CV, v)
        for c in range(num_tokens):
            top, total_H = highest_PC[part, c], sums_PCH[part, c]
            for v in range(start, stop):
                top = max(top, logits_CV[c, v])
            if top == -np.inf:  # no word so far is possible: inf - inf would be NaN
                continue
            if top > highest_PC[part, c]:
                scale = exp(highest_PC[part, c] - top)
                for k in range(size):
                    total_H[k] *= scale
                sums_PC[part, c] *= scale
                highest_PC[part, c] = top
            for v in range(start, stop):
                weights[v - start] = exp(logits_CV[c, v] - top)
            for v in range(start, stop):
                sums_PC[part, c] += weights[v - start]
            whole = stop - (stop - start) % 4
            for v in range(start, whole, 4):
                i = v - start
                one, two, three, four = now_VH[v], now_VH[v + 1], now_VH[v + 2], now_VH[v + 3]
                a, b, d, e = weights[i], weights[i + 1], weights[i + 2], weights[i + 3]
                for k in range(size):
                    total_H[k] += a * one[k] + b * two[k] + d * three[k] + e * four[k]
            for v in range(whole, stop):
                one, a = now_VH[v], weights[v - start]
                for k in range(size):
                    total_H[k] += a * one[k]


@compiled
def _logits(row_H: Array, vectors_CH: Array, bias: Any, logits_CV: Array, v: int) -> None:
    num_tokens, size = vectors_CH.shape
    rest = num_tokens % 4
    for c in range(rest):
        total, vector_H = F32(0.0), vectors_CH[c]
        for k in range(size):
            total += row_H[k] * vector_H[k]
        logits_CV[c, v] = total + bias
    for c in range(rest, num_tokens, 4):
        one, two = vectors_CH[c], vectors_CH[c + 1]
        three, four = vectors_CH[c + 2], vectors_CH[c + 3]
        a, b, d, e = F32(0.0), F32(0.0), F32(0.0), F32(0.0)
        for k in range(size):
            x = row_H[k]
            a += x * one[k]
            b += x * two[k]
            d += x * three[k]
            e += x * four[k]
        logits_CV[c, v], logits_CV[c + 1, v] = a + bias, b + bias
        logits_CV[c + 2, v], logits_CV[c + 3, v] = d + bias, e + bias
