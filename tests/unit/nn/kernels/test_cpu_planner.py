"""What is planned on a CPU: compiled loops by size and threads, compiled steps of decoding."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from elman.base.errors import UsageError
from elman.nn.cells import LSTMCell
from elman.nn.kernels import (
    KernelLimits,
    blocks,
    cpu_loops,
    cpu_planner,
    mkl,
    planning,
    plans_by_layer,
    recorded_plans,
)
from elman.nn.kernels.team import PooledLoop
from elman.nn.layer import RecurrentLayer
from elman.nn.stack import Stack, StackConfig
from planned_cells import cell, planned

pytestmark = pytest.mark.usefixtures("nothing_timed")
needs_loops = pytest.mark.skipif(not mkl.available(), reason="compiled loops are off here")


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
        monkeypatch.setattr(cpu_planner, "numba", None)
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
