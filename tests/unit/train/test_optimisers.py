"""Optimisers against the lecture's pseudo-code, and averaging against its paper."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from elman.base.errors import UsageError
from elman.train.checkpoint import load_optimiser, optimiser_tensors
from elman.train.optimisers import Average, OptimiserConfig, averaging_starts, build


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


def published_trigger(losses: list[float], interval: int) -> list[bool]:
    """Whether averaging is on after each validation, as the authors' training script decides it."""
    seen: list[float] = []
    on, answers = False, []
    for loss in losses:
        if not on and len(seen) > interval and loss > min(seen[:-interval]):
            on = True
        seen.append(loss)
        answers.append(on)
    return answers


@pytest.mark.parametrize(
    "losses",
    [
        [5, 4, 3, 2, 1, 0.5, 0.4],
        [5, 4, 3, 3.5, 3.2, 3.1, 3.3, 3.05, 2.0],
        [5, 6, 7, 8, 9, 10],
        [3, 2, 2.5, 2.4, 2.3, 2.2, 1.9, 2.1, 2.05, 2.3],
    ],
)
def test_averaging_starts_as_published(losses: list[float]) -> None:
    config = OptimiserConfig(kind="asgd", non_monotone_interval=3)
    answers = [averaging_starts(config, losses[: i + 1]) for i in range(len(losses))]
    assert answers == published_trigger(losses, 3)


def test_any_optimiser_can_average() -> None:
    rising = [1.0, *range(10)]
    for kind in ("sgd", "adam", "adamw", "rmsprop"):
        assert averaging_starts(OptimiserConfig(kind=kind, average="triggered"), rising)
    late = OptimiserConfig(kind="adam", average="triggered", average_latest=3)
    falling = [3.0, 2.0, 1.0]
    assert [averaging_starts(late, falling[:n]) for n in (1, 2, 3)] == [False, False, True]
    with pytest.raises(UsageError, match="asgd averages by itself"):
        OptimiserConfig(kind="asgd", average="exponential")
    with pytest.raises(UsageError, match="restarts"):
        OptimiserConfig(kind="adam", restarts=1)


def test_the_exponential_average_by_its_definition() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    average = Average([parameter], decay=0.9)
    values = [float(n % 7) for n in range(40)]
    for value in values:
        parameter.data.fill_(value)
        average.update()
    mean = sum(values[:10]) / 10  # as many as 1 / (1 - decay): all alike
    for value in values[10:]:
        mean = 0.9 * mean + 0.1 * value
    assert float(average.means[0]) == pytest.approx(mean)


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


def test_only_asgd_averages_by_default() -> None:
    rising = [float(i) for i in range(20)]
    assert averaging_starts(OptimiserConfig(kind="asgd"), rising)
    assert not averaging_starts(OptimiserConfig(kind="sgd"), rising)


def test_the_average_is_the_mean_since_it_was_begun() -> None:
    parameter = Parameter(torch.full((2,), 100.0))
    average = Average([parameter])
    values = [1.0, 2.0, 6.0]
    for value in values:
        parameter.data.fill_(value)
        average.update()
    torch.testing.assert_close(average.means[0], torch.full((2,), 3.0))
    with average.applied():
        assert parameter.tolist() == pytest.approx([3.0, 3.0])
    assert parameter.tolist() == [6.0, 6.0]
    torch.testing.assert_close(average.means[0], torch.full((2,), 3.0))


@pytest.mark.parametrize("settings", [{"momentum": 0.0}, {"momentum": 0.9, "dampening": 0.5}])
def test_nesterov_needs_momentum_and_no_dampening(settings: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="nesterov needs momentum"):
        OptimiserConfig(kind="sgd", nesterov=True, **settings)  # type: ignore[arg-type]
