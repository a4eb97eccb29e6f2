"""Everything that a stack of layers computes on one kernel, for tests that compare kernels."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

from elman.nn.kernels import recorded_plans
from elman.nn.layer import RecurrentLayer
from elman.nn.stack import Stack, StackConfig

CELLS: dict[str, dict[str, Any]] = {
    "lstm": {},
    "gru lecture": {"cell": "gru", "gru_form": "reset_before"},
    "gru torch": {"cell": "gru", "gru_form": "reset_after"},
    "mingru": {"cell": "mingru"},
    "minlstm": {"cell": "minlstm"},
    "sru": {"cell": "sru"},
}
"""The cells that have compiled loops, as options of a `StackConfig`."""


def make_stack(input_size: int, **options: Any) -> Stack:
    """Make a stack; `options` are those of its config and of `Stack`."""
    of_config = {f.name for f in fields(StackConfig)}
    config = StackConfig(**{name: value for name, value in options.items() if name in of_config})
    rest = {name: value for name, value in options.items() if name not in of_config}
    return Stack(config, input_size, **rest)


def set_kernel(model: nn.Module, kernel: str) -> None:
    for layer in model.modules():
        if isinstance(layer, RecurrentLayer):
            layer.kernel = kernel


def results(
    stack: Stack, kernel: str, inputs_BTI: Tensor, lengths_B: Tensor | None = None
) -> dict[str, Tensor]:
    """Outputs, final states, and the gradients of everything, by name, in float64.

    The initial state is random, and all outputs and final states are part of the loss. A kernel
    asked for by name runs at any size; the recorder says that it did.
    """
    set_kernel(stack, kernel)
    generator = torch.Generator().manual_seed(1)

    def random(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=generator).to(like)

    inputs_BTI = inputs_BTI.clone().requires_grad_()
    state = stack.initial_state(len(inputs_BTI)).map(lambda t: random(t).requires_grad_())
    with recorded_plans() as plans:
        outputs, after = stack(inputs_BTI, state, lengths_B)
    assert {plan.kernel for executed in plans.values() for plan in executed} == {kernel}
    found = {"outputs": outputs, **after.flatten("after ")}
    total = sum((tensor.float() * random(tensor)).sum() for tensor in found.values())
    wanted = {"inputs": inputs_BTI, **state.flatten("before "), **dict(stack.named_parameters())}
    gradients = torch.autograd.grad(total, list(wanted.values()))
    found |= dict(zip(wanted, gradients, strict=True))
    return {name: tensor.detach().double() for name, tensor in found.items()}


def relative_errors(found: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, float]:
    """The distance of each result from the exact one, relative to the latter's size."""
    return {
        name: float((found[name] - tensor).norm() / tensor.norm().clamp(min=1e-3))
        for name, tensor in exact.items()
    }
