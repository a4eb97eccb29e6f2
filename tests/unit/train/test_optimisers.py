"""Optimisers against the lecture's pseudo-code."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from elman.base.errors import UsageError
from elman.train.checkpoint import load_optimiser, optimiser_tensors
from elman.train.optimisers import OptimiserConfig, build


def gradients(steps: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(3, 2, generator=generator, dtype=torch.float64) for _ in range(steps)]


def lecture_sgd(
    theta: Tensor,
    all_gradients: list[Tensor],
    *,
    lr: float,
    weight_decay: float,
    momentum: float,
    dampening: float,
    nesterov: bool,
    maximise: bool,
) -> Tensor:
    """The slide, line by line. γ lr, λ weight decay, μ momentum, τ dampening."""
    b = torch.zeros_like(theta)
    for t, g in enumerate(all_gradients, start=1):
        if weight_decay != 0:
            g = g + weight_decay * theta
        if momentum != 0:
            b = momentum * b + (1 - dampening) * g if t > 1 else g
            g = g + momentum * b if nesterov else b
        theta = theta + lr * g if maximise else theta - lr * g
    return theta


SGD_CASES = [
    {"weight_decay": w, "momentum": m, "dampening": d, "nesterov": n, "maximise": x}
    for w, m, d, n, x in product((0.0, 0.1), (0.0, 0.9), (0.0, 0.3), (False, True), (False, True))
    if not (n and (m == 0 or d))  # Nesterov's momentum needs momentum, and no dampening
]


@pytest.mark.parametrize("settings", SGD_CASES, ids=str)
def test_sgd_is_the_lectures(settings: dict[str, float]) -> None:
    start = torch.arange(6, dtype=torch.float64).view(3, 2)
    parameter = Parameter(start.clone())
    config = OptimiserConfig(kind="sgd", learning_rate=0.05, **settings)
    optimiser = build(config, [parameter])
    for gradient in gradients(4):
        parameter.grad = gradient.clone()
        optimiser.step()
    expected = lecture_sgd(start, gradients(4), lr=0.05, **settings)
    torch.testing.assert_close(parameter.detach(), expected)


@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_adam_is_the_published_algorithm(kind: str) -> None:
    config = OptimiserConfig(
        kind=kind,
        learning_rate=0.01,
        beta1=0.8,
        beta2=0.95,
        epsilon=1e-6,
        weight_decay=0.1,
    )
    theta = torch.arange(6, dtype=torch.float64).view(3, 2)
    parameter = Parameter(theta.clone())
    optimiser = build(config, [parameter])
    m = v = torch.zeros_like(theta)
    for t, gradient in enumerate(gradients(4), start=1):
        parameter.grad = gradient.clone()
        optimiser.step()
        g = gradient
        if kind == "adam":
            g = g + 0.1 * theta
        else:
            theta = theta - 0.01 * 0.1 * theta
        m = 0.8 * m + 0.2 * g
        v = 0.95 * v + 0.05 * g * g
        theta = theta - 0.01 * (m / (1 - 0.8**t)) / ((v / (1 - 0.95**t)).sqrt() + 1e-6)
    torch.testing.assert_close(parameter.detach(), theta)


@pytest.mark.parametrize(
    "settings", [{"kind": "sgd", "momentum": 0.9}, {"kind": "adam"}, {"kind": "adamw"}]
)
def test_an_optimiser_survives_saving(settings: dict[str, Any]) -> None:
    config = OptimiserConfig(learning_rate=0.1, **settings)
    one = Parameter(torch.ones(3, 2, dtype=torch.float64))
    first = build(config, [one])
    grads = gradients(4)
    for gradient in grads[:2]:
        one.grad = gradient.clone()
        first.step()
    two = Parameter(one.detach().clone())
    second = build(config, [two])
    load_optimiser(second, {k: v.clone() for k, v in optimiser_tensors(first).items()})
    for gradient in grads[2:]:
        for parameter, optimiser in ((one, first), (two, second)):
            parameter.grad = gradient.clone()
            optimiser.step()
    assert torch.equal(one, two)


def test_rmsprop_divides_by_the_root_of_the_mean_square() -> None:
    """Kingma and Ba (2015) without the mean of gradients, as Melis and others (2018) train."""
    parameter = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.double))
    config = OptimiserConfig(kind="rmsprop", learning_rate=0.1, beta2=0.9, epsilon=1e-6)
    optimiser = build(config, [parameter])
    expected, mean = parameter.detach().clone(), torch.zeros(2, dtype=torch.double)
    for step in range(1, 6):
        gradient = torch.tensor([0.3 * step, -1.0 / step], dtype=torch.double)
        parameter.grad = gradient.clone()
        optimiser.step()
        mean = 0.9 * mean + 0.1 * gradient**2
        expected -= 0.1 * gradient / ((mean / (1 - 0.9**step)).sqrt() + 1e-6)
        torch.testing.assert_close(parameter.detach(), expected)


@pytest.mark.parametrize("settings", [{"momentum": 0.0}, {"momentum": 0.9, "dampening": 0.5}])
def test_nesterov_needs_momentum_and_no_dampening(settings: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="nesterov needs momentum"):
        OptimiserConfig(kind="sgd", nesterov=True, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("settings", [{"kind": "adamw"}, {"kind": "sgd", "maximise": True}])
def test_only_the_decay_of_a_loss_to_minimise_is_clipped(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="clip_decay"):
        OptimiserConfig(**settings, weight_decay=0.1, clip_decay=True)
