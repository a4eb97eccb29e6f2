"""The contract once for each kernel that this machine can execute, the recorder as witness.

Without a GPU, TRITON_INTERPRET=1 and `-k triton` run it in Triton's interpreter, in minutes;
`tests/parity/test_persistent.py` does so with a small part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from elman import testing
from elman.base.errors import UsageError
from elman.nn.kernels import blocks
from elman.nn.kernels.persistent_launch import INTERPRETED
from elman.nn.stack import Stack, StackConfig
from kernels_here import KernelCase, kernels_here
from tiny_models import TINY

MODELS = {
    "auto": (),  # every model of the table, in test_language_models.py
    "reference": ("lstm", "gru lecture", "mingru", "qrnn", "slstm"),
    "torch": ("lstm", "gru torch", "rnn tanh", "rnn relu", "regularised"),
    "scan": ("mingru", "minlstm", "sru", "qrnn", "hgrn", "rglru"),
    "cpu": ("lstm", "gru lecture", "gru torch", "regularised"),
    "cpu, by units": ("lstm", "regularised"),
    "stepwise": ("lstm", "mogrified", "sum of layers"),
    "wave": ("mogrified", "sum of layers"),
    "triton": ("lstm", "lstm projected", "gru lecture", "gru torch", "rnn sigmoid", "regularised"),
}
"""What each kernel computes, names in `TINY`."""

CHECKS: list[Callable[[Any], None]] = [*testing.CONTRACT, testing.check_learns_one_batch]


@pytest.fixture(
    params=[
        pytest.param((case, name), marks=case.marks, id=f"{name} on {case.name}")
        for case in kernels_here()
        for name in MODELS[case.name]
    ]
)
def config(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A model whose layers run on one kernel, all through a test."""
    case, name = request.param
    with torch.device(case.device), case.executed() as record:
        yield replace(TINY[name], kernel=case.kernel)
    plans = [plan for found in record.values() for plan in found]
    assert case.name != "cpu" or any(plan.num_parts == 2 for plan in plans)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(config: Any, check: Callable[[Any], None]) -> None:
    check(testing.build(config))


def test_repeats_under_a_seed(config: Any) -> None:
    testing.check_repeats_under_a_seed(lambda: testing.build(config))


def test_other_numbers(config: Any) -> None:
    """Double precision and autocast: as float32 has it, or an error; never another kernel."""
    model, tokens_BT = testing.build(config), testing.some_tokens(2, 6)
    exact = testing.whole(model, tokens_BT)
    # Triton's interpreter computes wrongly in bfloat16.
    few_bits = torch.float16 if INTERPRETED else torch.bfloat16
    with torch.autocast(tokens_BT.device.type, few_bits):
        if config.kernel == "cpu" and (config.cell != "lstm" or blocks.problem()):
            with pytest.raises(UsageError, match=r"autocast|bfloat16"):
                testing.whole(model, tokens_BT)
        else:
            found = testing.whole(model, tokens_BT)
            torch.testing.assert_close(found, exact, rtol=0.03, atol=0.03)
    if config.kernel in ("cpu", "triton", "wave"):
        with pytest.raises(UsageError, match=r"float32 only|16 or 32 bits"):
            testing.whole(model.double(), tokens_BT)
    else:
        found = testing.whole(model.double(), tokens_BT)
        torch.testing.assert_close(found.float(), exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=case.marks, id=case.name)
        for case in kernels_here()
        if case.kernel != "wave"  # its rows have one length
    ],
)
def test_blind_to_padding(case: KernelCase) -> None:
    """Both directions: rows of a padded batch come out as they do alone."""
    torch.manual_seed(0)
    config = StackConfig(cell=case.cell, hidden_size=9, num_layers=2, kernel=case.kernel)
    with torch.device(case.device), case.executed():
        stack, lengths = Stack(config, 4, bidirectional=True), [7, 4, 1, 6]
        inputs_BTI = torch.randn(4, 7, 4)
        outputs, state = stack(inputs_BTI, None, torch.tensor(lengths))
        for row, length in enumerate(lengths):
            alone, alone_state = stack(inputs_BTI[row : row + 1, :length])
            torch.testing.assert_close(outputs[row : row + 1, :length], alone)
            assert outputs[row, length:].eq(0).all()
            torch.testing.assert_close(state.select([row]).flatten(), alone_state.flatten())
