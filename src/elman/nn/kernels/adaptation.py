"""The update of dynamic evaluation (`models/dynamic.py`), in place:

    w <- w - rate g / (RMS + epsilon) + min(1, decay RMS / mean RMS) (w_0 - w)

torch has it as five passes over memory. The loops here, for float32 on a CPU, read and write every
number once; the gradient of a softmax's matrix, a product of few columns, is never stored.

W weights, C tokens, V vocabulary, H hidden.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from elman.nn.kernels import mkl
from elman.nn.kernels.loops import F32
from elman.nn.kernels.team import Floats1, Floats2, pooled_loop

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


def move_softmax(
    now_VH: Tensor,
    slopes_CV: Tensor,
    vectors_CH: Tensor,
    trained_VH: Tensor,
    rms_VH: Tensor,
    step: Step,
) -> None:
    """Update a matrix whose gradient is slopes^T vectors."""
    _rows(
        num_rows=len(now_VH),
        num_parts=_parts(now_VH.numel()),
        now_VH=now_VH,
        slopes_CV=slopes_CV,
        vectors_CH=vectors_CH,
        trained_VH=trained_VH,
        rms_VH=rms_VH,
        numbers=step.array(),
    )


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
def _rows(
    now_VH: Floats2,
    slopes_CV: Floats2,
    vectors_CH: Floats2,
    trained_VH: Floats2,
    rms_VH: Floats2,
    numbers: Floats1,
    first: int,
    last: int,
) -> None:
    rate, epsilon, pull = numbers[0], numbers[1], numbers[2]
    num_tokens, size = vectors_CH.shape
    gradient_H = np.empty(size, np.float32)
    for v in range(first, last):
        now_H, trained_H, rms_H = now_VH[v], trained_VH[v], rms_VH[v]
        slope = slopes_CV[0, v]
        for k in range(size):
            gradient_H[k] = slope * vectors_CH[0, k]
        for c in range(1, num_tokens):
            slope = slopes_CV[c, v]
            for k in range(size):
                gradient_H[k] += slope * vectors_CH[c, k]
        for k in range(size):
            back = min(pull * rms_H[k], F32(1.0)) * (trained_H[k] - now_H[k])
            now_H[k] += back - rate * gradient_H[k] / (rms_H[k] + epsilon)
