"""The maximum and the mean over the steps of each text, in one pass each way.

torch takes an operation for each, and half a dozen for the gradient of a maximum, most of which
wake all threads for a few microseconds of work. Here one thread does all of it.

T time steps, B batch, H numbers of a step, W pooled vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from elman.nn.kernels import mkl
from elman.nn.kernels.loops import F32
from elman.nn.kernels.team import Floats2, Floats3, pooled_loop
from elman.nn.shapes import Float

WAYS = ("max", "mean")


def serves(hidden_BTH: Tensor, ways: Sequence[str]) -> bool:
    """Whether the loop can pool these: float32 on a CPU, time first in memory."""
    return (
        set(ways) <= set(WAYS)
        and len(set(ways)) == len(ways)
        and hidden_BTH.device.type == "cpu"
        and hidden_BTH.dtype == torch.float32
        and hidden_BTH.shape[1] > 0
        and hidden_BTH.transpose(0, 1).is_contiguous()
        and mkl.available()
    )


def pooled(hidden_BTH: Float[Tensor, "B T H"], ways: Sequence[str]) -> Float[Tensor, "B W"]:
    """All steps of each text pooled in the given ways, side by side."""
    starts = [ways.index(way) if way in ways else -1 for way in WAYS]
    found: Tensor = _Pool.apply(hidden_BTH.transpose(0, 1), len(ways), *starts)  # type: ignore[no-untyped-call]
    return found


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, num_ways: int, of_max: int, of_mean: int) -> Tensor:
        _, batch_size, size = hidden.shape
        summary = hidden.new_empty(batch_size, num_ways * size)
        _forward(
            num_rows=batch_size,
            num_parts=1,
            hidden=hidden,
            summary=summary,
            of_max=of_max,
            of_mean=of_mean,
        )
        ctx.save_for_backward(hidden, summary)
        ctx.starts = of_max, of_mean
        return summary

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, to_summary: Tensor) -> tuple[Tensor | None, ...]:
        hidden, summary = ctx.saved_tensors
        of_max, of_mean = ctx.starts
        to_hidden = torch.empty_like(hidden)
        _backward(
            num_rows=hidden.shape[1],
            num_parts=1,
            hidden=hidden,
            summary=summary,
            to_summary=to_summary.contiguous(),
            shares=hidden.new_empty(2, hidden.shape[2]),
            to_hidden=to_hidden,
            of_max=of_max,
            of_mean=of_mean,
        )
        return to_hidden, None, None, None


@pooled_loop
def _forward(
    hidden: Floats3, summary: Floats2, of_max: int, of_mean: int, first: int, last: int
) -> None:
    """Fill `summary`; the maximum of each text begins at `of_max` times H, the mean at `of_mean`
    times H; -1: it is not wanted."""
    num_steps, size = len(hidden), hidden.shape[2]
    for b in range(first, last):
        if of_max >= 0:
            top = summary[b][of_max * size : (of_max + 1) * size]
            top[:] = hidden[0, b]
            for t in range(1, num_steps):
                step = hidden[t, b]
                for k in range(size):  # NaN stays
                    stays = (step[k] <= top[k]) | (top[k] != top[k])
                    top[k] = top[k] if stays else step[k]
        if of_mean >= 0:
            total = summary[b][of_mean * size : (of_mean + 1) * size]
            total[:] = hidden[0, b]
            for t in range(1, num_steps):
                step = hidden[t, b]
                for k in range(size):
                    total[k] += step[k]
            for k in range(size):
                total[k] /= F32(num_steps)


@pooled_loop
def _backward(
    hidden: Floats3,
    summary: Floats2,
    to_summary: Floats2,
    shares: Floats2,
    to_hidden: Floats3,
    of_max: int,
    of_mean: int,
    first: int,
    last: int,
) -> None:
    """Fill `to_hidden`; steps that share a maximum divide its gradient. `shares` is scratch."""
    num_steps, size = len(hidden), hidden.shape[2]
    of_top, of_all = shares[0], shares[1]
    for b in range(first, last):
        of_all[:] = F32(0.0)
        if of_mean >= 0:
            to_mean = to_summary[b][of_mean * size : (of_mean + 1) * size]
            for k in range(size):
                of_all[k] = to_mean[k] / F32(num_steps)
        if of_max < 0:
            for t in range(num_steps):
                to_hidden[t, b] = of_all
            continue
        top = summary[b][of_max * size : (of_max + 1) * size]
        to_max = to_summary[b][of_max * size : (of_max + 1) * size]
        of_top[:] = F32(0.0)
        for t in range(num_steps):
            step = hidden[t, b]
            for k in range(size):
                of_top[k] += F32(1.0) if step[k] == top[k] else F32(0.0)
        for k in range(size):
            of_top[k] = to_max[k] / of_top[k]
        for t in range(num_steps):
            step, gradient = hidden[t, b], to_hidden[t, b]
            for k in range(size):
                gradient[k] = of_all[k] + (of_top[k] if step[k] == top[k] else F32(0.0))
