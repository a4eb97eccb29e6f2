"""Adam over many tensors on all threads of a CPU, in one pass over memory.

torch's fused Adam does the same tensor by tensor, after a pass of its own that scales clipped
gradients. Here every thread takes an equal share of all numbers (`team.py`), and the scale is part
of the pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import torch
from torch.nn import Parameter

from elman.nn.kernels import mkl
from elman.nn.kernels.loops import F32, Array, compiled, inlined
from elman.nn.kernels.team import Records, pooled_loop, view

ORDER = Records("parameter", "gradient", "mean", "square", "step", "size", "settings")
Orders = Annotated[Any, ORDER]
"""Addresses of a tensor's arrays and of its number of updates, its size, and the address of the
settings of its group."""


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
        orders, kept = [], []
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
                gradient = parameter.grad.contiguous()
                kept.append(gradient)
                arrays = (parameter, gradient, memory["exp_avg"], memory["exp_avg_sq"])
                addresses = (*(array.data_ptr() for array in arrays), memory["step"].data_ptr())
                orders.append((*addresses, parameter.numel(), settings.ctypes.data))
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
            size = order.size
            begin, end = size * part // num_parts, size * (part + 1) // num_parts
            _update_numbers(
                view(order.parameter, (size,), F32)[begin:end],
                view(order.gradient, (size,), F32)[begin:end],
                view(order.mean, (size,), F32)[begin:end],
                view(order.square, (size,), F32)[begin:end],
                view(order.settings, (7,), np.float64),
                view(order.step, (1,), F32)[0] + 1.0,
            )


@inlined
def _averaged(old: Any, new: Any, beta: Any) -> Any:
    """beta * old + (1 - beta) * new, as a step from the one that weighs more: float32 holds the
    smaller share more exactly, and a share of 0 leaves nothing of what may have been far larger."""
    if beta < 0.5:
        return new + F32(beta) * (old - new)
    return old + F32(1.0 - beta) * (new - old)


@compiled
def _update_numbers(
    weights: Array, gradients: Array, means: Array, squares: Array, settings: Array, step: float
) -> None:
    rate, beta1, beta2 = settings[0], settings[1], settings[2]
    rate1 = F32(rate / (1.0 - beta1**step))
    root2 = F32(1.0 / np.sqrt(1.0 - beta2**step))
    epsilon, scale = F32(settings[3]), F32(settings[4])
    added, kept = F32(settings[5]), F32(settings[6])
    for k in range(len(weights)):
        weight = weights[k] * kept
        gradient = gradients[k] * scale + weight * added
        mean = _averaged(means[k], gradient, beta1)
        square = _averaged(squares[k], gradient * gradient, beta2)
        means[k] = mean
        squares[k] = square
        weights[k] = weight - rate1 * mean / (np.sqrt(square) * root2 + epsilon)


@pooled_loop
def _count(orders: Orders) -> None:
    """Count the update, once no thread reads the numbers any more."""
    for i in range(len(orders)):
        view(orders[i].step, (1,), F32)[0] += F32(1.0)
