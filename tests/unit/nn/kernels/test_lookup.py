"""Embeddings looked up by a compiled loop: vectors and gradients as from torch's operations."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from elman.nn.dropout import Dropout
from elman.nn.inputs import Lookup
from elman.nn.kernels import lookup, mkl


@pytest.fixture(autouse=True)
def _available() -> None:
    if problem := mkl.problem():
        pytest.skip(problem)


@pytest.mark.parametrize("drops_words", [True, False])
@pytest.mark.parametrize("drops_inputs", [True, False])
def test_vectors_and_gradients(drops_words: bool, drops_inputs: bool) -> None:
    torch.manual_seed(1)
    weight = torch.randn(30, 5, requires_grad=True)
    tokens_TB = torch.randint(30, (4, 7))
    tokens_TB[0] = torch.tensor([29, 0, 29, 29, 8, 7, 8])
    kept_V1 = (torch.rand(30, 1) < 0.5) * 2.0 if drops_words else None
    mask_B1E = (torch.rand(7, 1, 5) < 0.5) * 2.0 if drops_inputs else None
    expected = F.embedding(tokens_TB, weight)
    if kept_V1 is not None:
        expected = expected * F.embedding(tokens_TB, kept_V1)
    if mask_B1E is not None:
        expected = expected * mask_B1E[:, 0]
    found = lookup.looked_up(weight, tokens_TB, kept_V1, mask_B1E)
    assert torch.equal(found, expected)
    to_vectors = torch.randn(4, 7, 5)
    (dense,) = torch.autograd.grad(expected, weight, to_vectors)
    (sparse,) = torch.autograd.grad(found, weight, to_vectors)
    assert sparse.is_sparse
    assert sparse.is_coalesced()
    assert sparse._indices()[0].tolist() == sorted(set(tokens_TB.flatten().tolist()))
    torch.testing.assert_close(sparse.to_dense(), dense)


@pytest.mark.parametrize("locked", [True, False])
def test_a_lookup_in_a_training_run_drops_the_same(locked: bool) -> None:
    module, dropout = Lookup(40, 6, dropout=0.4), Dropout(0.3, locked=locked)
    tokens_BT = torch.randint(40, (3, 5))
    torch.manual_seed(2)
    plain_BTE = module(tokens_BT, dropout)
    module.embedding.sparse = True  # as the training loop sets it
    torch.manual_seed(2)
    found_BTE = module(tokens_BT, dropout)
    assert torch.equal(found_BTE, plain_BTE)
    assert found_BTE.transpose(0, 1).is_contiguous()
    found_BTE.sum().backward()
    gradient = module.embedding.weight.grad
    assert gradient is not None
    assert (lookup.merge_rows(gradient) is gradient) == locked
    module.eval()
    dropout.eval()
    assert torch.equal(module(tokens_BT, dropout), F.embedding(tokens_BT, module.all_types()))


@pytest.mark.parametrize("token", [-1, 5])
def test_tokens_outside_of_the_vocabulary(token: int) -> None:
    with pytest.raises(IndexError):
        lookup.looked_up(torch.randn(5, 2), torch.tensor([[0, token]]), None, None)
