"""Products of a matrix and one vector, beside torch's."""

from __future__ import annotations

import pytest
import torch

from elman.nn.kernels import mkl, row_products

pytestmark = pytest.mark.skipif(
    not mkl.available(), reason="numba is missing, or torch has no MKL here"
)


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("num_rows", [512, 515])
def test_products_are_torch_s(num_rows: int, num_threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        torch.manual_seed(1)
        matrix, x, s = torch.randn(num_rows, 601), torch.randn(1, 601), torch.randn(1, num_rows)
        assert row_products.serves(x, matrix)
        torch.testing.assert_close(row_products.times(matrix, x), x @ matrix.t(), rtol=0, atol=1e-4)
        found = row_products.transposed_times(matrix, s)
        torch.testing.assert_close(found, s @ matrix, rtol=0, atol=1e-4)
    finally:
        torch.set_num_threads(before)


def test_what_is_left_to_torch() -> None:
    matrix = torch.zeros(512, 600)
    assert not row_products.serves(torch.zeros(2, 600), matrix)
    assert not row_products.serves(torch.zeros(1, 2, 600), matrix)
    assert not row_products.serves(torch.zeros(1, 600).double(), matrix.double())
    assert not row_products.serves(torch.zeros(1, 600), torch.zeros(600, 512).t())
    assert not row_products.serves(torch.zeros(1, 60), torch.zeros(60, 60))
