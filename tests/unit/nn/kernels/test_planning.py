"""One function decides what computes a cell; what was executed is recorded."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from elman.base.errors import UsageError
from elman.nn.cells import Cell, LSTMCell
from elman.nn.kernels import (
    KernelLimits,
    KernelPlan,
    Purpose,
    blocks,
    cpu_loops,
    kernel_limits,
    mkl,
    plan,
    planning,
    plans_by_layer,
    recorded_plans,
    timing,
)
from elman.nn.kernels.team import PooledLoop
from elman.nn.layer import RecurrentLayer, executed_plans
from elman.nn.stack import Stack, StackConfig, make_cell
from elman.nn.state import State

CPU = torch.device("cpu")
needs_loops = pytest.mark.skipif(not mkl.available(), reason="compiled loops are off here")


@pytest.fixture(autouse=True)
def _nothing_timed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Plans as they are where timing finds no clear difference."""
    monkeypatch.setattr(timing, "fastest", lambda layer, candidates: next(iter(candidates)))
    planning._decide.cache_clear()
    yield
    planning._decide.cache_clear()


def cell(**options: Any) -> Cell:
    return make_cell(StackConfig(**options), 64, options.get("hidden_size", 256))


def planned(cell: Cell, shape: tuple[int, int] = (32, 128), **options: Any) -> KernelPlan:
    given: dict[str, Any] = {
        "device": CPU,
        "dtype": cell.bias.dtype,
        "purpose": Purpose.TRAINING,
        "limits": KernelLimits(num_threads=2),
    }
    return plan(cell, shape=(*shape, cell.input_size), **given | options)


FASTEST: list[tuple[dict[str, Any], str]] = [
    ({}, "cpu"),
    ({"cell": "gru"}, "cpu"),
    ({"cell": "gru", "gru_form": "reset_before"}, "cpu"),
    ({"cell": "rnn", "nonlinearity": "relu"}, "torch"),
    ({"cell": "rnn", "nonlinearity": "sigmoid"}, "reference"),
    ({"peephole": True}, "reference"),
    ({"layer_norm": True}, "reference"),
    ({"projection_size": 2}, "reference"),
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


@needs_loops
@pytest.mark.parametrize(
    ("shape", "limits", "text"),
    [
        ((32, 128), {}, "cpu: compiled loop, rows over 2 threads"),
        ((32, 128), {"num_threads": 1}, "cpu: compiled loop, one thread"),
        ((32, 8), {}, "torch: its LSTM layer"),
        ((32, 8), {"smallest_work": 0}, "cpu: compiled loop, rows over 2 threads"),
        ((8, 2000), {}, "torch: its LSTM layer"),
        ((8, 2000), {"fewest_rows": 2}, "cpu: compiled loop, rows over 2 threads"),
        ((16, 2000), {"cache_bytes": 0}, "cpu: compiled loop, units over 2 threads"),
        (
            (32, 128),
            {"cache_bytes": 0, "large_bytes": 0},
            "cpu: compiled loop, units over 2 threads",
        ),
    ],
    ids=str,
)
def test_sizes_decide_an_lstm(shape: tuple[int, int], limits: dict[str, Any], text: str) -> None:
    chosen = planned(cell(), shape, limits=KernelLimits(**{"num_threads": 2, **limits}))
    assert chosen.describe().partition(", products")[0] == text
    if chosen.kernel == "torch":
        assert chosen.reason == "not cpu: too little work for compiled loops to gain from"


@pytest.mark.skipif(bool(blocks.problem()), reason="no products in bfloat16 here")
@pytest.mark.parametrize(
    ("num_threads", "rows", "text"),
    [
        (1, 64, "one thread"),
        (2, 64, "rows over 2 threads"),
        (2, 32, "rows over 2 threads"),
        (2, 20, "units over 2 threads"),
        (8, 64, "4 groups of rows by 2 of units over 8 threads"),
        (13, 64, "4 groups of rows by 3 of units over 12 threads"),
        (16, 64, "4 groups of rows by 4 of units over 16 threads"),
    ],
)
def test_tiles_divide_rows_and_units(
    num_threads: int, rows: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With AMX each part has 16 rows, and its part of the matrix stays in a core's cache; two
    threads divide the rows if both have as many."""
    monkeypatch.setattr(blocks, "has_tiles", lambda: True)
    planning._decide.cache_clear()
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            limits = KernelLimits(num_threads=num_threads)
            found = planned(LSTMCell(512, 512), (rows, 128), limits=limits)
    finally:
        planning._decide.cache_clear()
    assert found.describe().partition(", products")[0] == f"cpu: compiled loop, {text}"


@needs_loops
def test_other_numbers_go_to_other_kernels() -> None:
    assert planned(cell().double()).reason == "not cpu: it computes in float32 only"
    assert planned(cell(), state_dtype=torch.float64).kernel == "torch"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = planned(cell())
        assert found.products == "bfloat16" or blocks.problem() in found.reason
    with torch.autocast("cpu", dtype=torch.float16):
        assert "it follows autocast to bfloat16 for LSTM only" in planned(cell()).reason
    assert planned(cell(), (0, 3)).reason == "no rows: nothing to compute"


@needs_loops
@pytest.mark.parametrize(
    ("options", "rows", "text"),
    [
        ({}, 1, "cpu: compiled step"),
        ({}, 4, "cpu: compiled step"),
        ({}, 5, "torch: its LSTM cell"),
        ({"cell": "gru"}, 5, "reference: one step of the cell"),
        ({"cell": "mingru"}, 1, "scan: compiled step"),
        ({"cell": "mingru"}, 5, "scan: one step"),
        ({"kernel": "cpu"}, 5, "cpu: compiled step"),
        ({"kernel": "torch"}, 1, "torch: its LSTM cell"),
        ({"kernel": "torch", "cell": "gru"}, 1, "torch: its GRU cell"),
        ({"kernel": "reference"}, 1, "reference: one step of the cell"),
    ],
    ids=str,
)
def test_steps_of_decoding(options: dict[str, Any], rows: int, text: str) -> None:
    """A kernel asked for by name is used for steps too."""
    stack = Stack(StackConfig(hidden_size=6, **options), 4)
    with torch.no_grad(), recorded_plans() as plans:
        stack.step(torch.randn(rows, 4), stack.initial_state(rows))
    assert plans_by_layer(stack, plans) == {"layers.0": text}


@needs_loops
def test_without_numba_torch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = RecurrentLayer(cell(cell="gru", hidden_size=5))
    inputs_BI, state = torch.randn(1, 64), layer.initial_state(1)
    with torch.no_grad():
        compiled, _ = layer.step(inputs_BI, state)
        monkeypatch.setattr(planning, "numba", None)
        monkeypatch.setattr(mkl, "problem", lambda: "numba is not installed")
        planning._decide.cache_clear()
        try:
            with recorded_plans() as plans:
                found, _ = layer.step(inputs_BI, state)
                layer(inputs_BI.unsqueeze(1), state)
        finally:
            planning._decide.cache_clear()
    torch.testing.assert_close(found, compiled)
    assert [plan.describe() for plan in plans[layer]] == [
        "reference: one step of the cell",
        "torch: its GRU layer",
    ]
    assert all(plan.reason == "not cpu: numba is not installed" for plan in plans[layer])


@pytest.mark.parametrize(
    ("kernel", "options", "why"),
    [
        ("torch", {"peephole": True}, "torch has no such layer"),
        ("torch", {"projection_size": 2}, "on a CPU torch has no projections"),
        ("scan", {}, "it is for minGRU"),
        ("cpu", {"cell": "rnn"}, "it computes LSTM and GRU without extras"),
        ("triton", {}, "it needs Triton and a CUDA device"),
    ],
)
def test_a_named_kernel_that_cannot_raises(kernel: str, options: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why) as error:
        planned(cell(**options), kernel=kernel)
    assert error.value.hint == "set kernel to auto"


@pytest.mark.parametrize("kernel", ["scan", "cpu", "triton", "torch", "reference"])
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


@needs_loops
def test_cpu_by_name_raises_for_other_numbers() -> None:
    stack = Stack(StackConfig(cell="gru", hidden_size=5, kernel="cpu"), 4)
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(UsageError, match="follows autocast to bfloat16 for LSTM only"),
    ):
        stack(torch.randn(2, 3, 4))
    with pytest.raises(UsageError, match="float32 only"):
        stack.double()(torch.randn(2, 3, 4).double())


def test_unknown_kernels_are_named_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="no kernel called 'tortch'") as error:
        planned(cell(), kernel="tortch")
    assert error.value.hint == "did you mean 'torch'?"


@needs_loops
def test_cpu_by_name_runs_the_compiled_loops_at_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """`kernel=cpu` on a small LSTM once ran torch's layer, while `info` said cpu."""
    calls: list[str] = []
    run, lstm = PooledLoop.__call__, torch.lstm

    def run_loop(loop: PooledLoop, **given: Any) -> None:
        calls.extend(["loop"] if loop is cpu_loops.lstm_forward else [])
        run(loop, **given)

    def run_torch(*given: Any) -> Any:
        calls.append("torch")
        return lstm(*given)

    monkeypatch.setattr(PooledLoop, "__call__", run_loop)
    monkeypatch.setattr(torch, "lstm", run_torch)
    for kernel, expected in (("cpu", "loop"), ("torch", "torch"), ("auto", "torch")):
        stack = Stack(StackConfig(hidden_size=5, kernel=kernel), 4)
        with recorded_plans() as plans:
            stack(torch.randn(2, 3, 4))
        assert calls.pop() == expected
        assert not calls
        ((executed,),) = plans.values()
        assert executed.kernel == ("cpu" if expected == "loop" else "torch")


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
