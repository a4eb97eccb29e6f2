"""Adam over many tensors on all threads of a CPU, in one pass over memory.

torch's fused Adam does the same tensor by tensor, after a pass of its own that scales clipped
gradients. Here every thread takes an equal share of all numbers (`team.py`), and the scale is part
of the pass. The gradient of an embedding may be the rows of the batch's words (`lookup.py`): the
others are zeros that are neither written nor read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import torch
from torch.nn import Parameter

from elman.nn.kernels import mkl
from elman.nn.kernels.lookup import merge_rows
from elman.nn.kernels.loops import F32, Array, compiled, inlined
from elman.nn.kernels.team import Records, pooled_loop, view

ORDER = Records(
    *("parameter", "gradient", "mean", "square", "step", "size", "settings"),
    *("rows", "num_rows", "width"),
)
Orders = Annotated[Any, ORDER]
"""Addresses of a tensor's arrays and of its number of updates, its size, and the address of the
settings of its group; for a gradient of some rows, the address of their rising numbers, how many
there are, and the numbers in a row, which is 0 for a gradient of all."""


FEWEST_NUMBERS = 1 << 15
"""Weights that are worth another thread."""


class CompiledAdam(torch.optim.Adam):
    """torch's Adam, or AdamW, with a compiled `step`; its memory is the same.

    Use it where `serves` says so.
    """

    scale = 1.0
    """What the gradients of the next step are multiplied by, as if they had been clipped before."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        assert closure is None, "the loss is computed before"
        orders: list[tuple[int, ...]] = []
        kept: list[Any] = []
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            sign = -1.0 if group["maximize"] else 1.0
            decay, rate = group["weight_decay"], float(group["lr"])
            apart = group["decoupled_weight_decay"]
            settings = np.array(
                [
                    *(rate, beta1, beta2, group["eps"], sign * self.scale),
                    *(0.0 if apart else decay, 1.0 - rate * decay if apart else 1.0),
                ]
            )
            kept.append(settings)
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                memory = self.state[parameter]
                if not memory:
                    memory["step"] = torch.zeros((), dtype=torch.float32)
                    memory["exp_avg"] = torch.zeros_like(parameter)
                    memory["exp_avg_sq"] = torch.zeros_like(parameter)
                gradient, of_rows = parameter.grad, (0, 0, 0)
                if gradient.is_sparse:
                    gradient = merge_rows(gradient)
                    rows_R, gradient = gradient._indices()[0], gradient._values()
                    of_rows = (rows_R.data_ptr(), len(rows_R), parameter.shape[1])
                    kept.append(rows_R)
                gradient = gradient.contiguous()
                kept.append(gradient)
                arrays = (parameter, gradient, memory["exp_avg"], memory["exp_avg_sq"])
                addresses = (*(array.data_ptr() for array in arrays), memory["step"].data_ptr())
                orders.append((*addresses, parameter.numel(), settings.ctypes.data, *of_rows))
        self.scale = 1.0
        if orders:
            records = np.array(orders, ORDER.dtype)
            size = sum(order[5] for order in orders)
            num_parts = min(torch.get_num_threads(), 1 + size // FEWEST_NUMBERS)
            _update(num_rows=num_parts, num_parts=num_parts, orders=records)
            _count(num_rows=1, num_parts=1, orders=records)


def serves(parameters: Sequence[Parameter]) -> bool:
    """Whether the compiled Adam can update these: float32 on a CPU, contiguous; with numba and a
    torch that has MKL, as all compiled training loops."""
    return mkl.available() and all(
        p.device.type == "cpu" and p.dtype == torch.float32 and p.is_contiguous()
        for p in parameters
    )


@pooled_loop
def _update(orders: Orders, num_parts: int, first: int, last: int) -> None:
    """Each part updates the same share of every tensor."""
    for part in range(first, last):
        for i in range(len(orders)):
            order = orders[i]
            size, width = order.size, max(1, order.width)
            begin = size // width * part // num_parts * width
            end = size // width * (part + 1) // num_parts * width
            weights, means = view(order.parameter, (size,), F32), view(order.mean, (size,), F32)
            squares = view(order.square, (size,), F32)
            factors = _factors(view(order.settings, (7,), np.float64), view(order.step, (1,), F32))
            if not order.width:
                gradients = view(order.gradient, (size,), F32)
                arrays = weights[begin:end], gradients[begin:end]
                _update_numbers(arrays, means[begin:end], squares[begin:end], factors)
                continue
            rows = view(order.rows, (order.num_rows,), np.int64)
            merged = view(order.gradient, (order.num_rows, width), F32)
            for n in range(np.searchsorted(rows, begin // width), len(rows) + 1):
                until = min(end, rows[n] * width) if n < len(rows) else end
                if begin < until:
                    rest = slice(begin, until)
                    _update_rest(weights[rest], means[rest], squares[rest], factors)
                if until == end:
                    break
                begin = until + width
                arrays = weights[until:begin], merged[n]
                _update_numbers(arrays, means[until:begin], squares[until:begin], factors)


@inlined
def _averaged(old: Any, new: Any, beta: Any) -> Any:
    """beta * old + (1 - beta) * new, as a step from the one that weighs more: float32 holds the
    smaller share more exactly, and a share of 0 leaves nothing of what may have been far larger."""
    if beta < 0.5:
        return new + F32(beta) * (old - new)
    return old + F32(1.0 - beta) * (new - old)


@compiled
def _factors(settings: Array, count: Array) -> Any:
    """What all numbers of a tensor share in the update after `count`."""
    rate, beta1, beta2, step = settings[0], settings[1], settings[2], count[0] + 1.0
    rate1 = F32(rate / (1.0 - beta1**step))
    root2 = F32(1.0 / np.sqrt(1.0 - beta2**step))
    shared = F32(settings[3]), F32(settings[4]), F32(settings[5]), F32(settings[6])
    return beta1, beta2, rate1, root2, *shared


@inlined
def _updated(weight: Any, gradient: Any, mean: Any, square: Any, factors: Any) -> Any:
    """The new mean, square and weight; `gradient` is scaled, `weight` not yet decayed."""
    beta1, beta2, rate1, root2, epsilon, _, added, kept = factors
    weight = weight * kept
    gradient = gradient + weight * added
    mean = _averaged(mean, gradient, beta1)
    square = _averaged(square, gradient * gradient, beta2)
    return mean, square, weight - rate1 * mean / (np.sqrt(square) * root2 + epsilon)


@compiled
def _update_numbers(given: Any, means: Array, squares: Array, factors: Any) -> None:
    (weights, gradients), scale = given, factors[5]
    for k in range(len(weights)):
        mean, square, weight = _updated(
            weights[k], gradients[k] * scale, means[k], squares[k], factors
        )
        means[k] = mean
        squares[k] = square
        weights[k] = weight


@compiled
def _update_rest(weights: Array, means: Array, squares: Array, factors: Any) -> None:
    """The same where the gradient is zero."""
    for k in range(len(weights)):
        mean, square, weight = _updated(weights[k], F32(0.0), means[k], squares[k], factors)
        means[k] = mean
        squares[k] = square
        weights[k] = weight


@pooled_loop
def _count(orders: Orders) -> None:
    """Count the update, once no thread reads the numbers any more."""
    for i in range(len(orders)):
        view(orders[i].step, (1,), F32)[0] += F32(1.0)
