"""Masks drawn by a compiled loop: torch's own numbers, and its generator's state after them."""

from __future__ import annotations

import pytest
import torch

from elman.nn.dropout import Dropout
from elman.nn.kernels import bernoulli
from elman.nn.kernels.bernoulli import FEWEST_NUMBERS


@pytest.fixture(autouse=True)
def _drawn_here() -> None:
    if not bernoulli.serves(torch.empty(0), FEWEST_NUMBERS):
        pytest.skip("torch draws other numbers here, or compiled loops are off")


@pytest.mark.parametrize("keep", [0.5, 0.8, 0.999])
@pytest.mark.parametrize("size", [1, 311, 312, 313, 5000])
def test_the_numbers_are_torchs(size: int, keep: float) -> None:
    for skipped in range(2):  # an even and an odd number of words drawn before
        torch.manual_seed(3)
        torch.randint(2, (skipped,))
        expected = torch.empty(size).bernoulli_(keep).div_(keep)
        after = torch.rand(4)
        torch.manual_seed(3)
        torch.randint(2, (skipped,))
        assert torch.equal(bernoulli.mask((size,), keep), expected)
        assert torch.equal(torch.rand(4), after)


def test_a_new_generator_begins_as_torchs() -> None:
    torch.manual_seed(5)
    expected = torch.empty(3, 7).bernoulli_(0.7).div_(0.7)
    torch.manual_seed(5)
    assert torch.equal(bernoulli.mask((3, 7), 0.7), expected)


def test_dropout_draws_the_same_by_either(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = torch.randn(2, FEWEST_NUMBERS)
    dropout = Dropout(0.3, locked=False)
    torch.manual_seed(1)
    found = dropout(inputs)
    monkeypatch.setattr(bernoulli, "serves", lambda like, number: False)
    torch.manual_seed(1)
    assert torch.equal(found, dropout(inputs))


def test_few_numbers_and_others_than_float32_are_torchs() -> None:
    assert not bernoulli.serves(torch.empty(0), FEWEST_NUMBERS - 1)
    assert not bernoulli.serves(torch.empty(0, dtype=torch.float64), FEWEST_NUMBERS)
