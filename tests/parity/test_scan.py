"""The scan against the cells' equations, the paper's log-space form, and finite differences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from elman.base.errors import UsageError
from elman.nn.kernels.scan import linear_scan
from elman.nn.stack import Stack, StackConfig

SCAN_CELLS = ("mingru", "minlstm", "sru")
SIZES = [(1, 1, 1), (2, 3, 3), (3, 20, 33), (20, 2, 70), (33, 1, 5), (1, 257, 1000), (40, 130, 9)]
"""Batch, hidden units, steps: odd ones, and on both sides of the choice of one or two levels."""


def set_kernel(stack: Stack, kernel: str) -> None:
    for layer in stack.modules():
        if hasattr(layer, "kernel"):
            layer.kernel = kernel


def results(stack: Stack, inputs_BTI: Tensor, lengths_B: Tensor | None) -> list[Tensor]:
    """Outputs, final states, and the gradients of everything, the initial state's among them."""
    torch.manual_seed(1)
    state = stack.initial_state(len(inputs_BTI)).map(lambda t: torch.randn_like(t).requires_grad_())
    outputs, after = stack(inputs_BTI, state, lengths_B)
    found = [outputs, *after.flatten().values()]
    total = sum((tensor * torch.randn_like(tensor)).sum() for tensor in found)
    wanted = [inputs_BTI, *state.flatten().values(), *stack.parameters()]
    return [*found, *torch.autograd.grad(total, wanted)]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("cell", SCAN_CELLS)
def test_scan_equals_reference(cell: Any, size: tuple[int, int, int]) -> None:
    batch_size, hidden_size, num_steps = size
    torch.manual_seed(0)
    stack = Stack(StackConfig(cell=cell, hidden_size=hidden_size), 4).double()
    inputs_BTI = torch.randn(batch_size, num_steps, 4, dtype=torch.double, requires_grad=True)
    both = []
    for kernel in ("scan", "reference"):
        set_kernel(stack, kernel)
        both.append(results(stack, inputs_BTI, None))
    torch.testing.assert_close(*both, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("cell", SCAN_CELLS)
def test_ragged_and_both_ways(cell: Any) -> None:
    torch.manual_seed(0)
    config = StackConfig(cell=cell, hidden_size=6, num_layers=2)
    stack = Stack(config, 4, bidirectional=True).double()
    inputs_BTI = torch.randn(4, 9, 4, dtype=torch.double, requires_grad=True)
    both = []
    for kernel in ("scan", "reference"):
        set_kernel(stack, kernel)
        both.append(results(stack, inputs_BTI, torch.tensor([9, 1, 4, 0])))
    torch.testing.assert_close(*both, rtol=1e-9, atol=1e-10)


def log_space(keep: Tensor, add: Tensor, initial: Tensor) -> Tensor:
    """The papers' scan (Heinsen, 2023; Feng and others, 2024), for positive numbers."""
    kept = torch.cumsum(keep.log(), 0)
    logs = torch.cat([initial.log().unsqueeze(0), add.log() - kept])
    return (kept + torch.logcumsumexp(logs, 0)[1:]).exp()


def test_scan_equals_the_log_space_form() -> None:
    torch.manual_seed(0)
    keep, add, initial = (
        torch.rand(*s, dtype=torch.double) for s in ((60, 2, 5), (60, 2, 5), (2, 5))
    )
    torch.testing.assert_close(linear_scan(keep, add, initial), log_space(keep, add, initial))


@pytest.mark.parametrize("num_units", [3, 5000])
def test_scan_survives_what_products_do_not(num_units: int) -> None:
    """Gates near 0 over a thousand steps: their product underflows, the states must not care."""
    torch.manual_seed(0)
    keep = torch.rand(1000, 1, num_units) * 1e-3
    keep[500:] = 0.0
    add = torch.randn(1000, 1, num_units)
    states = linear_scan(keep, add, torch.full((1, num_units), 1e30))
    exact = linear_scan(keep.double(), add.double(), torch.full((1, num_units), 1e30).double())
    assert states.isfinite().all()
    torch.testing.assert_close(states, exact.float(), rtol=1e-5, atol=1e-6)


@settings(deadline=None, max_examples=30)
@given(
    num_steps=st.integers(1, 40),
    cut=st.integers(0, 40),
    num_units=st.sampled_from([1, 7, 4096]),
    seed=st.integers(0, 99),
)
def test_scan_can_be_cut_anywhere(num_steps: int, cut: int, num_units: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    keep, add = torch.rand(2, num_steps, 1, num_units, generator=generator, dtype=torch.double)
    initial = torch.randn(1, num_units, generator=generator, dtype=torch.double)
    whole = linear_scan(keep, add, initial)
    cut = min(cut, num_steps - 1)
    if cut:
        first = linear_scan(keep[:cut], add[:cut], initial)
        second = linear_scan(keep[cut:], add[cut:], first[-1])
        torch.testing.assert_close(torch.cat([first, second]), whole)


def test_scan_is_differentiable_twice() -> None:
    torch.manual_seed(0)
    given_ = [
        torch.rand(s, dtype=torch.double).requires_grad_() for s in ((7, 1, 2), (7, 1, 2), (1, 2))
    ]
    assert torch.autograd.gradcheck(linear_scan, given_)
    assert torch.autograd.gradgradcheck(linear_scan, given_)


@pytest.mark.parametrize("cell", SCAN_CELLS)
def test_settings_that_need_a_recurrent_matrix_are_refused(cell: Any) -> None:
    with pytest.raises(UsageError, match="has no recurrent matrix"):
        Stack(StackConfig(cell=cell, hidden_size=4, weight_drop=0.1), 4)
    with pytest.raises(UsageError, match="layer_norm") as error:
        StackConfig(cell=cell, layer_norm=True)
    assert "lstm or gru or rnn" in (error.value.hint or "")
