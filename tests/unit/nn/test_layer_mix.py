"""Mixing layers: equation 1 of the ELMo paper by hand, and what it is measured against."""

from __future__ import annotations

import math

import pytest
import torch

from elman.nn.layer_mix import LayerMix

LAYERS_LBTD = torch.randn(3, 2, 4, 5, generator=torch.Generator().manual_seed(1))


def test_a_mix_is_the_scaled_sum_of_its_shares() -> None:
    mix = LayerMix(3, 5, "mix", layer_norm=False)
    assert mix.weights_L is not None
    torch.testing.assert_close(mix(LAYERS_LBTD), LAYERS_LBTD.mean(0))
    with torch.no_grad():
        mix.weights_L.copy_(torch.tensor([0.0, math.log(2), math.log(5)]))
        mix.scale.fill_(3.0)
    expected = 3 * (LAYERS_LBTD[0] + 2 * LAYERS_LBTD[1] + 5 * LAYERS_LBTD[2]) / 8
    torch.testing.assert_close(mix(LAYERS_LBTD), expected)
    torch.testing.assert_close(mix.shares(), torch.tensor([1 / 8, 2 / 8, 5 / 8]))
    mix(LAYERS_LBTD).square().sum().backward()
    assert mix.weights_L.grad is not None
    assert mix.weights_L.grad.abs().min() > 0


@pytest.mark.parametrize("kind", ["mix", "top", "concat"])
def test_the_scale_is_learnt_in_each(kind: str) -> None:
    half, whole = (LayerMix(3, 5, kind, layer_norm=False, scale=s) for s in (0.5, 1.0))  # type: ignore[arg-type]
    torch.testing.assert_close(2 * half(LAYERS_LBTD), whole(LAYERS_LBTD))
    whole(LAYERS_LBTD).sum().backward()
    assert whole.scale.grad is not None


def test_top_and_all_side_by_side() -> None:
    top, every = (LayerMix(3, 5, kind, layer_norm=False) for kind in ("top", "concat"))
    assert torch.equal(top(LAYERS_LBTD), LAYERS_LBTD[2])
    assert top.output_size == 5
    assert every.output_size == 15
    assert torch.equal(every(LAYERS_LBTD)[..., 5:10], LAYERS_LBTD[1])
    assert [name for name, _ in top.named_parameters()] == ["scale"]
    assert [name for name, _ in every.named_parameters()] == ["scale"]


@pytest.mark.parametrize("kind", ["mix", "top", "concat"])
def test_normalised_layers_are_blind_to_their_scale(kind: str) -> None:
    mix = LayerMix(3, 5, kind, layer_norm=True)  # type: ignore[arg-type]
    scaled = LAYERS_LBTD * torch.tensor([1.0, 100.0, 0.1]).view(3, 1, 1, 1)
    torch.testing.assert_close(mix(scaled), mix(LAYERS_LBTD), rtol=1e-2, atol=1e-2)
    assert not mix(torch.zeros(3, 1, 1, 5)).any()
