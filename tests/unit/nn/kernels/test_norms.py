"""Norms of many tensors by all threads, beside float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from elman.nn.kernels import mkl
from elman.nn.kernels.norms import FEWEST_NUMBERS, norms

needs_team = pytest.mark.skipif(
    not mkl.available(), reason="numba is missing, or torch has no MKL here"
)


def exact(tensors: list[Tensor]) -> list[float]:
    return [float(torch.linalg.vector_norm(tensor.double())) for tensor in tensors]


@needs_team
@pytest.mark.parametrize("num_threads", [1, 2, 7])
def test_each_tensor_has_its_own_norm(num_threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: num_threads)
    torch.manual_seed(0)
    sizes = [(FEWEST_NUMBERS // 4 + 3, 5), (1,), (0,), (2, 3, 1021)]
    tensors = [10.0**i * torch.randn(*size) for i, size in enumerate(sizes)]
    assert norms(tensors).tolist() == pytest.approx(exact(tensors), rel=1e-6)


@needs_team
def test_many_equal_numbers_are_not_lost_beside_their_sum() -> None:
    """torch's own norm of these is wrong by half a per cent."""
    tensor = torch.full((6_500_000,), 0.1)
    assert norms([tensor]).tolist() == pytest.approx(exact([tensor]), rel=1e-6)


def test_what_the_threads_do_not_serve_is_torchs() -> None:
    tensors = [torch.randn(FEWEST_NUMBERS, 2).t(), torch.randn(3, dtype=torch.float64)]
    assert norms(tensors[:1]).tolist() == pytest.approx(exact(tensors[:1]), rel=1e-3)
    assert norms(tensors[1:]).tolist() == pytest.approx(exact(tensors[1:]))


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_what_is_not_finite_is_seen(value: float) -> None:
    tensors = [torch.ones(FEWEST_NUMBERS), torch.ones(3)]
    tensors[0][FEWEST_NUMBERS // 3] = value
    first, second = norms(tensors).tolist()
    assert not torch.isfinite(torch.tensor(first))
    assert second == pytest.approx(3**0.5)
