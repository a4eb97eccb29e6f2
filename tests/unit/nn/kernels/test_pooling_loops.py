"""Pooling by a compiled loop: vectors and gradients as from torch's operations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from elman.nn.kernels import mkl, pooling

WAYS = [("max",), ("mean",), ("max", "mean"), ("mean", "max")]


@pytest.fixture(autouse=True)
def _available() -> None:
    if problem := mkl.problem():
        pytest.skip(problem)


def by_torch(hidden_BTH: Tensor, ways: tuple[str, ...]) -> Tensor:
    found = {"max": hidden_BTH.amax(1), "mean": hidden_BTH.mean(1)}
    return torch.cat([found[way] for way in ways], dim=1)


@pytest.mark.parametrize("ways", WAYS)
def test_vectors_and_gradients(ways: tuple[str, ...]) -> None:
    torch.manual_seed(1)
    hidden_TBH = torch.randn(6, 3, 20)
    hidden_TBH[4] = hidden_TBH[2]  # steps that share a maximum divide its gradient
    hidden_TBH.requires_grad_()
    hidden_BTH = hidden_TBH.transpose(0, 1)
    assert pooling.serves(hidden_BTH, ways)
    expected, found = by_torch(hidden_BTH, ways), pooling.pooled(hidden_BTH, ways)
    torch.testing.assert_close(found, expected)
    to_found = torch.randn_like(found)
    (theirs,) = torch.autograd.grad(expected, hidden_TBH, to_found)
    (ours,) = torch.autograd.grad(found, hidden_TBH, to_found)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("place", [0, 1, 3])
def test_nan_stays(place: int) -> None:
    hidden_TBH = torch.randn(4, 2, 20)
    hidden_TBH[place, 1, 7] = torch.nan
    found_BP = pooling.pooled(hidden_TBH.transpose(0, 1), ("max",))
    assert found_BP.isnan().nonzero().tolist() == [[1, 7]]


def test_what_is_left_to_torch() -> None:
    hidden_TBH = torch.randn(4, 2, 20)
    hidden_BTH = hidden_TBH.transpose(0, 1)
    assert not pooling.serves(hidden_BTH, ("max", "last"))
    assert not pooling.serves(hidden_BTH.double(), ("max",))
    assert not pooling.serves(hidden_BTH.contiguous(), ("max",))
    assert not pooling.serves(hidden_BTH[:, :0], ("max",))
