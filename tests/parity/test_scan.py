"""The scan against the cells' equations, the paper's log-space form, and finite differences."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from elman.base.errors import UsageError
from elman.nn.kernels.planning import STEP_BY_STEP, TWO_LEVELS
from elman.nn.kernels.scan import linear_scan
from elman.nn.stack import Stack, StackConfig
from stack_results import results

VARIANTS = (STEP_BY_STEP, TWO_LEVELS)
both_variants = pytest.mark.parametrize("variant", VARIANTS)

SCAN_CELLS = ("mingru", "minlstm", "sru", "qrnn", "hgrn", "rglru")
SIZES = [(1, 1, 1), (2, 3, 3), (3, 20, 33), (20, 2, 70), (33, 1, 5), (1, 257, 1000), (40, 130, 9)]
"""Batch, hidden units, steps: odd ones, and on both sides of the choice of one or two levels."""


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("cell", SCAN_CELLS)
def test_scan_equals_reference(cell: Any, size: tuple[int, int, int]) -> None:
    batch_size, hidden_size, num_steps = size
    assert_equal(StackConfig(cell=cell, hidden_size=hidden_size), (batch_size, num_steps))


@pytest.mark.parametrize("cell", SCAN_CELLS)
def test_ragged_and_both_ways(cell: Any) -> None:
    config = StackConfig(cell=cell, hidden_size=6, num_layers=2)
    assert_equal(config, (4, 9), torch.tensor([9, 1, 4, 0]), bidirectional=True)


def assert_equal(
    config: StackConfig,
    size: tuple[int, int],
    lengths_B: Tensor | None = None,
    *,
    bidirectional: bool = False,
) -> None:
    torch.manual_seed(0)
    stack = Stack(config, 4, bidirectional=bidirectional).double()
    inputs_BTI = torch.randn(*size, 4, dtype=torch.double)
    both = [results(stack, kernel, inputs_BTI, lengths_B) for kernel in ("scan", "reference")]
    torch.testing.assert_close(*both, rtol=1e-9, atol=1e-10)


def log_space(keep: Tensor, add: Tensor, initial: Tensor) -> Tensor:
    """The papers' scan (Heinsen, 2023; Feng and others, 2024), for positive numbers."""
    kept = torch.cumsum(keep.log(), 0)
    logs = torch.cat([initial.log().unsqueeze(0), add.log() - kept])
    return (kept + torch.logcumsumexp(logs, 0)[1:]).exp()


@both_variants
def test_scan_equals_the_log_space_form(variant: str) -> None:
    torch.manual_seed(0)
    keep, add, initial = (
        torch.rand(*s, dtype=torch.double) for s in ((60, 2, 5), (60, 2, 5), (2, 5))
    )
    found = linear_scan(keep, add, initial, variant)
    torch.testing.assert_close(found, log_space(keep, add, initial))


@both_variants
def test_scan_survives_what_products_do_not(variant: str) -> None:
    """Gates near 0 over a thousand steps: their product underflows, the states must not care."""
    torch.manual_seed(0)
    keep = torch.rand(1000, 1, 5) * 1e-3
    keep[500:] = 0.0
    add, initial = torch.randn(1000, 1, 5), torch.full((1, 5), 1e30)
    states = linear_scan(keep, add, initial, variant)
    exact = linear_scan(keep.double(), add.double(), initial.double(), variant)
    assert states.isfinite().all()
    torch.testing.assert_close(states, exact.float(), rtol=1e-5, atol=1e-6)


@settings(max_examples=30)
@given(
    num_steps=st.integers(1, 40),
    cut=st.integers(0, 40),
    variant=st.sampled_from(VARIANTS),
    seed=st.integers(0, 99),
)
def test_scan_can_be_cut_anywhere(num_steps: int, cut: int, variant: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    keep, add = torch.rand(2, num_steps, 1, 7, generator=generator, dtype=torch.double)
    initial = torch.randn(1, 7, generator=generator, dtype=torch.double)
    whole = linear_scan(keep, add, initial, variant)
    cut = min(cut, num_steps - 1)
    if cut:
        first = linear_scan(keep[:cut], add[:cut], initial, variant)
        second = linear_scan(keep[cut:], add[cut:], first[-1], variant)
        torch.testing.assert_close(torch.cat([first, second]), whole)


@both_variants
def test_scan_is_differentiable_twice(variant: str) -> None:
    torch.manual_seed(0)
    given_ = [
        torch.rand(s, dtype=torch.double).requires_grad_() for s in ((7, 1, 2), (7, 1, 2), (1, 2))
    ]
    scan = partial(linear_scan, variant=variant)
    assert torch.autograd.gradcheck(scan, given_)
    assert torch.autograd.gradgradcheck(scan, given_)


@pytest.mark.parametrize("cell", SCAN_CELLS)
def test_settings_that_need_a_recurrent_matrix_are_refused(cell: Any) -> None:
    for name in ("weight_drop", "dropout_state"):
        with pytest.raises(UsageError, match=f"model.{name}"):
            StackConfig(cell=cell, hidden_size=4, **{name: 0.1})
    with pytest.raises(UsageError, match="layer_norm") as error:
        StackConfig(cell=cell, layer_norm=True)
    assert "lstm or gru or rnn" in (error.value.hint or "")
