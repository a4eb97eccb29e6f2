"""The contract once for each kernel that this machine can execute, the recorder as witness."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from elman import testing
from elman.base.errors import UsageError
from elman.nn.kernels import kernel_limits, mkl, recorded_plans
from elman.nn.stack import Stack, StackConfig
from tiny_models import TINY

LIMITS: dict[str, dict[str, Any]] = {
    "reference": {},
    "torch": {},
    "scan": {},
    "cpu": {"num_threads": 2, "fewest_rows": 1},
    "cpu, by units": {"num_threads": 2, "cache_bytes": 0},
}
"""Kernels, and limits under which they run as their name says at these sizes."""

CASES = [
    *((name, "reference") for name in ("lstm", "gru lecture", "mingru")),
    *((name, "torch") for name in ("lstm", "gru torch", "rnn tanh", "rnn relu", "regularised")),
    *((name, "scan") for name in ("mingru", "minlstm", "sru")),
    *((name, "cpu") for name in ("lstm", "gru lecture", "gru torch", "regularised")),
    *((name, "cpu, by units") for name in ("lstm", "regularised")),
]

CHECKS: list[Callable[[Any], None]] = [
    testing.check_shapes,
    testing.check_stepwise_equals_whole,
    testing.check_chunked_equals_whole,
    testing.check_blind_to_the_future,
    testing.check_rows_are_independent,
    testing.check_state_rows,
    testing.check_state_is_a_value,
    testing.check_learns_one_batch,
]


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]} on {case[1]}")
def config(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A model whose layers run on one kernel, all through a test."""
    name, kernel = request.param
    if kernel.startswith("cpu") and not mkl.available():
        pytest.skip("compiled loops are off here")
    with kernel_limits(**LIMITS[kernel]), recorded_plans() as plans:
        yield replace(TINY[name], kernel=kernel.partition(",")[0])
    executed = {plan for found in plans.values() for plan in found}
    assert {plan.kernel for plan in executed} == {kernel.partition(",")[0]}
    loops = [plan for plan in executed if "compiled loop" in plan.variant]
    assert all(plan.by_units == ("by units" in kernel) for plan in loops)
    assert any(plan.num_parts == 2 for plan in loops) or kernel != "cpu"


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(config: Any, check: Callable[[Any], None]) -> None:
    check(testing.build(config))


def test_repeats_under_a_seed(config: Any) -> None:
    testing.check_repeats_under_a_seed(lambda: testing.build(config))


def test_other_numbers(config: Any) -> None:
    """Double precision and autocast: as float32 has it, or an error; never another kernel."""
    model, tokens_BT = testing.build(config), testing.some_tokens(2, 6)
    exact = testing.whole(model, tokens_BT)
    if config.kernel == "cpu":
        with pytest.raises(UsageError, match="autocast"), torch.autocast("cpu", torch.bfloat16):
            testing.whole(model, tokens_BT)
        with pytest.raises(UsageError, match="float32"):
            testing.whole(model.double(), tokens_BT)
        return
    with torch.autocast("cpu", torch.bfloat16):
        found = testing.whole(model, tokens_BT)
    torch.testing.assert_close(found, exact, rtol=0.03, atol=0.03)
    found = testing.whole(model.double(), tokens_BT)
    torch.testing.assert_close(found.float(), exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kernel", LIMITS)
def test_blind_to_padding(kernel: str) -> None:
    """Both directions: rows of a padded batch come out as they do alone."""
    if kernel.startswith("cpu") and not mkl.available():
        pytest.skip("compiled loops are off here")
    name = kernel.partition(",")[0]
    torch.manual_seed(0)
    cell = "mingru" if name == "scan" else "lstm"
    config = StackConfig(cell=cell, hidden_size=9, num_layers=2, kernel=name)
    stack = Stack(config, 4, bidirectional=True)
    inputs_BTI, lengths = torch.randn(4, 7, 4), [7, 4, 1, 6]
    with kernel_limits(**LIMITS[kernel]), recorded_plans() as plans:
        outputs, state = stack(inputs_BTI, None, torch.tensor(lengths))
        for row, length in enumerate(lengths):
            alone, alone_state = stack(inputs_BTI[row : row + 1, :length])
            torch.testing.assert_close(outputs[row : row + 1, :length], alone)
            assert outputs[row, length:].eq(0).all()
            torch.testing.assert_close(state.select([row]).flatten(), alone_state.flatten())
    assert {plan.kernel for found in plans.values() for plan in found} == {name}
