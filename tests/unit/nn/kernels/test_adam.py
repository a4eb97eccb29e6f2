"""The compiled Adam beside torch's in float64, and its share in clipping."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import Parameter

from elman.nn.kernels import mkl
from elman.nn.kernels.adam import FEWEST_NUMBERS, CompiledAdam
from elman.nn.kernels.lookup import merge_rows
from elman.train.gradients import clip
from elman.train.optimisers import OptimiserConfig, build

pytestmark = pytest.mark.skipif(
    not mkl.available(), reason="numba is missing, or torch has no MKL here"
)
SIZES = [(FEWEST_NUMBERS // 8 + 3, 17), (1,), (0,), (7, 5)]


def gradients(step: int) -> list[Tensor]:
    """Of sizes from 1e-9 to 1."""
    random = torch.Generator().manual_seed(step)
    return [
        torch.randn(size, generator=random) * 10 ** (-9 * torch.rand(size, generator=random))
        for size in SIZES
    ]


def trained(config: OptimiserConfig, dtype: torch.dtype, threshold: float) -> list[Tensor]:
    """Weights after some updates; the last one has no gradient at first."""
    random = torch.Generator().manual_seed(0)
    weights = [Parameter(torch.randn(size, generator=random).to(dtype)) for size in SIZES]
    optimiser = build(config, weights)
    assert isinstance(optimiser, CompiledAdam) == (dtype == torch.float32)
    for step in range(5):
        for weight, gradient in zip(weights, gradients(step), strict=True):
            weight.grad = gradient.to(dtype)
        if step < 2:
            weights[-1].grad = None
        clip(weights, threshold, optimiser)
        optimiser.step()
    return [weight.detach() for weight in weights]


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "adam"},
        {"kind": "adam", "weight_decay": 0.1, "beta1": 0.5, "epsilon": 1e-4},
        {"kind": "adamw", "weight_decay": 0.1},
        {"kind": "adam", "maximise": True, "weight_decay": 0.1},
        {"kind": "rmsprop", "beta2": 0.9},
    ],
    ids=str,
)
def test_the_compiled_adam_is_torchs(
    settings: dict[str, Any], num_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: num_threads)
    config = OptimiserConfig(learning_rate=0.01, **settings)
    ours, exact = (trained(config, dtype, 0.5) for dtype in (torch.float32, torch.float64))
    for mine, truth in zip(ours, exact, strict=True):
        torch.testing.assert_close(mine.double(), truth, rtol=1e-6, atol=1e-6)


def test_a_clipped_step_scales_one_step_only() -> None:
    weight = Parameter(torch.ones(4))
    optimiser = build(OptimiserConfig(beta1=0.0, learning_rate=0.1), [weight])
    weight.grad = torch.full((4,), 10.0)
    norm, _ = clip([weight], 1.0, optimiser)
    assert norm == pytest.approx(20.0)
    assert isinstance(optimiser, CompiledAdam)
    assert optimiser.scale == pytest.approx(1 / 20)
    optimiser.step()
    assert optimiser.state[weight]["exp_avg"].tolist() == pytest.approx([0.5] * 4)
    weight.grad = torch.full((4,), 0.1)
    clip([weight], 1.0, optimiser)
    optimiser.step()
    assert optimiser.state[weight]["exp_avg"].tolist() == pytest.approx([0.1] * 4)


def test_small_betas_forget_a_gradient_that_was_far_larger() -> None:
    """RMSprop's mean of gradients is the last one; a step from the mean towards it would round."""
    weight = Parameter(torch.ones(4))
    optimiser = build(OptimiserConfig(kind="rmsprop", beta2=0.0), [weight])
    for size in (1e4, 1e-4):
        weight.grad = torch.full((4,), size)
        optimiser.step()
    memory = optimiser.state[weight]
    torch.testing.assert_close(memory["exp_avg"], weight.grad, rtol=0, atol=0)
    torch.testing.assert_close(memory["exp_avg_sq"], weight.grad.square())


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("vocab_size", [1, 40, 9001])
@pytest.mark.parametrize(
    "settings", [{"kind": "adam"}, {"kind": "adamw", "weight_decay": 0.1, "beta1": 0.3}], ids=str
)
def test_rows_of_an_embedding_are_updated_as_a_dense_gradient(
    settings: dict[str, Any], vocab_size: int, num_threads: int
) -> None:
    """Repeated words, clipped and not, first and last rows."""
    before = torch.get_num_threads()
    found = []
    try:
        torch.set_num_threads(num_threads)
        for sparse in (False, True):
            random = torch.Generator().manual_seed(0)
            embedding = nn.Embedding(vocab_size, 33, sparse=sparse)
            with torch.no_grad():
                embedding.weight.normal_(generator=random)
            optimiser = build(OptimiserConfig(**settings), [embedding.weight])
            for step in range(4):
                tokens = torch.randint(vocab_size, (6, 5), generator=random)
                tokens[0, :2] = torch.tensor([0, vocab_size - 1])
                optimiser.zero_grad()
                embedding(tokens).square().sum().backward()  # type: ignore[no-untyped-call]
                clip([embedding.weight], 0.1 if step % 2 else 0.0, optimiser)
                optimiser.step()
            found.append(embedding.weight.detach())
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-7)


def test_merged_rows_are_the_gradient() -> None:
    embedding = nn.Embedding(7, 3, sparse=True)
    tokens = torch.tensor([5, 1, 5, 6, 1, 5])
    embedding(tokens).square().sum().backward()  # type: ignore[no-untyped-call]
    gradient = embedding.weight.grad
    assert gradient is not None
    merged = merge_rows(gradient)
    assert merged.is_coalesced()
    assert merged.indices()[0].tolist() == [1, 5, 6]
    torch.testing.assert_close(merged.to_dense(), gradient.to_dense())
    assert merge_rows(merged) is merged
