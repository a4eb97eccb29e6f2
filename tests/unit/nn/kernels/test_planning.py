"""One function decides what computes a cell; what was executed is recorded."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from elman.base.errors import UsageError
from elman.nn.cells import Cell, LSTMCell
from elman.nn.kernels import (
    KERNELS,
    KernelPlan,
    Purpose,
    kernel_limits,
    mkl,
    planners,
    planning,
    plans_by_layer,
    recorded_plans,
)
from elman.nn.kernels.persistent_tiling import Chip
from elman.nn.layer import RecurrentLayer
from elman.nn.stack import Stack, StackConfig, executed_plans
from elman.nn.state import State
from planned_cells import CPU, cell, planned

pytestmark = pytest.mark.usefixtures("nothing_timed")
needs_loops = pytest.mark.skipif(not mkl.available(), reason="compiled loops are off here")


MOGRIFIED = {"mogrify_rounds": 2, "mogrify_rank": 8}
FASTEST: list[tuple[dict[str, Any], str]] = [
    ({}, "cpu"),
    ({"cell": "gru"}, "cpu"),
    ({"cell": "gru", "gru_form": "reset_before"}, "cpu"),
    ({"cell": "rnn", "nonlinearity": "relu"}, "torch"),
    ({"cell": "rnn", "nonlinearity": "sigmoid"}, "reference"),
    ({"peephole": True}, "reference"),
    ({"layer_norm": True}, "reference"),
    ({"projection_size": 2}, "reference"),
    ({"cap_input": True}, "stepwise"),
    (MOGRIFIED, "stepwise"),
    ({"cell": "mingru"}, "scan"),
    ({"cell": "minlstm"}, "scan"),
    ({"cell": "sru"}, "scan"),
    ({"cell": "qrnn"}, "scan"),
    ({"cell": "hgrn"}, "scan"),
    ({"cell": "rglru"}, "scan"),
    ({"cell": "slstm"}, "reference"),
]


@needs_loops
@pytest.mark.parametrize(("options", "kernel"), FASTEST, ids=str)
def test_the_fastest_kernel_for_a_cell(options: dict[str, Any], kernel: str) -> None:
    assert planned(cell(**options)).kernel == kernel
    assert planned(cell(**options), kernel="reference").kernel == "reference"


@pytest.mark.parametrize(
    ("kernel", "options", "why"),
    [
        ("torch", {"peephole": True}, "torch has no such layer"),
        ("torch", {"projection_size": 2}, "on a CPU torch has no projections"),
        ("scan", {}, "it is for minGRU"),
        ("cpu", {"cell": "rnn"}, "it computes LSTM and GRU without extras"),
        ("triton", {}, "it needs Triton and a CUDA device"),
        ("wave", MOGRIFIED, "it needs Triton and a CUDA device"),
    ],
)
def test_a_named_kernel_that_cannot_raises(kernel: str, options: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why) as error:
        planned(cell(**options), kernel=kernel)
    assert error.value.hint == "set kernel to auto"


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("purpose", Purpose)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_named_kernel_is_planned_or_refused(
    kernel: str, purpose: Purpose, dtype: torch.dtype
) -> None:
    """For every cell, device, dtype and purpose; with one sentence and a hint."""
    devices = (CPU, torch.device("mps"))
    for (options, _), device, gradients in product(FASTEST, devices, (False, True)):
        made = cell(**options).to(dtype)
        found: KernelPlan | UsageError
        try:
            with torch.set_grad_enabled(gradients):
                found = planned(made, kernel=kernel, purpose=purpose, device=device)
        except UsageError as error:
            found = error
        if isinstance(found, KernelPlan):
            assert (found.kernel, found.reason) == (kernel, "asked for by name")
        else:
            assert kernel != "reference"  # it computes everything
            assert found.message.startswith(f"the kernel '{kernel}' cannot compute this ")
            assert found.hint == "set kernel to auto"


FULL_RANK = "not wave: it computes LSTM with mogrifiers of low rank, a capped gate or state dropout"


@pytest.mark.parametrize(
    ("options", "asked", "text", "reason"),
    [
        ({"cap_input": True}, {}, "wave: fused launches", ""),
        (MOGRIFIED, {}, "wave: fused launches", ""),
        ({}, {"masked": True}, "wave: fused launches", "not triton: it does not drop out the"),
        ({"mogrify_rounds": 2}, {}, "stepwise: step by step, fused", FULL_RANK),
        (MOGRIFIED, {"ragged": True}, "stepwise: step by step, fused", "rows of one length"),
        (
            {**MOGRIFIED, "mogrify_rank": 2048},
            {},
            "stepwise: step by step, fused",
            "not wave: the matrices of the mogrifiers do not fit on the chip",
        ),
        (MOGRIFIED, {"purpose": Purpose.ONE_STREAM}, "reference: one step of the cell", ""),
        (
            MOGRIFIED,
            {"purpose": Purpose.ONE_STREAM, "kernel": "wave"},
            "wave: one step of the cell",
            "asked for by name",
        ),
        (
            MOGRIFIED,
            {"purpose": Purpose.ONE_STREAM, "kernel": "stepwise"},
            "stepwise: one step of the cell",
            "asked for by name",
        ),
    ],
    ids=str,
)
def test_lstms_with_extras_on_a_gpu(
    options: dict[str, Any],
    asked: dict[str, Any],
    text: str,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As planned on a GPU with 99 KiB of shared memory, without one."""
    monkeypatch.setattr(planners, "runs_on", lambda device: True)
    monkeypatch.setattr(planners, "chip_of", lambda index: Chip(84, 99 * 1024, (8, 6)))
    planning._decide.cache_clear()
    try:
        with torch.device("meta"):
            made = cell(**options)
        found = planned(made, device=torch.device("cuda:0"), **asked)
    finally:
        planning._decide.cache_clear()
    assert found.describe() == text
    assert reason in found.reason


def test_unknown_kernels_are_named_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="no kernel called 'tortch'") as error:
        planned(cell(), kernel="tortch")
    assert error.value.hint == "did you mean 'torch'?"


def test_a_recorder_collects_distinct_plans_by_layer() -> None:
    config = StackConfig(hidden_size=5, num_layers=2, kernel="torch")
    stack = Stack(config, 4, bidirectional=True)
    with recorded_plans() as plans:
        for _ in range(2):
            stack(torch.randn(2, 3, 4))
        stack.layers[0].rightward.kernel = "reference"  # type: ignore[union-attr]
        stack(torch.randn(2, 3, 4))
    stack(torch.randn(2, 3, 4))  # not recorded
    assert plans_by_layer(stack, plans) == {
        "layers.0.rightward": "torch: its LSTM layer; reference: loop over the cell",
        "layers.0.leftward": "torch: its LSTM layer",
        "layers.1.rightward": "torch: its LSTM layer",
        "layers.1.leftward": "torch: its LSTM layer",
    }


@needs_loops
def test_executed_plans_depend_on_the_shape() -> None:
    stack = Stack(StackConfig(hidden_size=5), 4)
    assert executed_plans(stack, 2, 3) == {"layers.0": "torch: its LSTM layer"}
    with kernel_limits(smallest_work=0, num_threads=1):
        expected = "cpu: compiled loop, one thread, products by MKL"
        assert executed_plans(stack, 2, 3) == {"layers.0": expected}
    assert executed_plans(stack, 2, 3) == {"layers.0": "torch: its LSTM layer"}


class OtherLSTM(LSTMCell):
    """A cell from outside that changes an equation: no fast kernel knows it."""

    def step(
        self, projected_BG: Tensor, state: State, recurrent_weight: Tensor | None = None
    ) -> tuple[Tensor, State]:
        output_BP, state = super().step(projected_BG, state, recurrent_weight)
        return -output_BP, state


class OwnKernel:
    @staticmethod
    def run(cell: Cell, inputs_BTI: Tensor, state: State, *given: Any) -> tuple[Tensor, State]:
        return inputs_BTI.new_ones(*inputs_BTI.shape[:2], cell.output_size), state

    @staticmethod
    def step(cell: Cell, inputs_BI: Tensor, state: State, plan: KernelPlan) -> tuple[Tensor, State]:
        return inputs_BI.new_ones(len(inputs_BI), cell.output_size), state


def test_cells_and_kernels_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELMAN_PLUGINS", __name__)
    name = f"{__name__}:OtherLSTM"
    stack = Stack(StackConfig(cell=name, hidden_size=5), 4)
    assert isinstance(stack.layers[0], RecurrentLayer)
    assert type(stack.layers[0].cell) is OtherLSTM
    inputs_BTI = torch.randn(2, 3, 4)
    with kernel_limits(smallest_work=0):
        assert executed_plans(stack, 2, 3) == {"layers.0": "reference: loop over the cell"}
    stack.layers[0].kernel = f"{__name__}:OwnKernel"
    assert (stack(inputs_BTI)[0] == 1).all()
    assert (stack.step(inputs_BTI[:, 0], stack.initial_state(2))[0] == 1).all()
    for options in ({"peephole": True}, {"layer_norm": True}):
        with pytest.raises(UsageError, match="nothing reads it"):
            Stack(StackConfig(cell=name, **options), 4)
    with pytest.raises(UsageError, match="is not a cell"):
        Stack(StackConfig(cell=f"{__name__}:OwnKernel"), 4)
    with pytest.raises(UsageError, match="OtherLSTM is not a kernel"):
        Stack(StackConfig(kernel=name), 4)(inputs_BTI)


def test_unknown_cells_are_named_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="no cell called 'lstn'") as error:
        Stack(StackConfig(cell="lstn"), 4)
    assert error.value.hint == "did you mean 'lstm'?"
