"""The Triton loops on a GPU: as exact as cuDNN at odd sizes, and never hanging."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from elman.base.errors import UsageError
from elman.nn.kernels import plans_by_layer, recorded_plans
from elman.nn.stack import Stack, StackConfig, executed_plans
from stack_results import relative_errors, results

pytestmark = pytest.mark.gpu

CELLS: dict[str, dict[str, Any]] = {
    "lstm": {},
    "gru": {"cell": "gru"},
    "lecture's gru": {"cell": "gru", "gru_form": "reset_before"},
    "tanh": {"cell": "rnn"},
}
SIZES = [(1, 1, 70), (33, 3, 1000), (20, 257, 70), (1, 1150, 1), (20, 1150, 70), (33, 1150, 70)]
SIZES += [(80, 1150, 20), (20, 1500, 35), (64, 1500, 10), (128, 1536, 5)]
"""Batch, hidden units, steps."""


def assert_as_exact_as_cudnn(
    config: StackConfig,
    size: tuple[int, int],
    dtype: torch.dtype,
    lengths_B: Tensor | None = None,
    **direction: bool,
) -> None:
    """Beside float64 on the same, rounded weights; the worst of all results counts."""
    # The error of a few numbers is a matter of luck: average several draws.
    draws = range(8 if config.hidden_size < 4 else 1)
    pairs = [_errors(config, size, dtype, lengths_B, seed, **direction) for seed in draws]
    smallest = max(3e-6, torch.finfo(dtype).eps)
    for name in pairs[0][0]:
        error, peer = (sum(pair[side][name] for pair in pairs) / len(pairs) for side in (0, 1))
        # Gates and their gradients are kept in `dtype`: over many steps and units cuDNN's errors
        # are larger, in one step of one row they are smaller.
        assert error < max(1.3 * peer, smallest), f"{name}: {error:.1e}, {peer:.1e}"


def _errors(
    config: StackConfig,
    size: tuple[int, int],
    dtype: torch.dtype,
    lengths_B: Tensor | None,
    seed: int,
    **direction: bool,
) -> tuple[dict[str, float], dict[str, float]]:
    """Ours and torch's, by the results' names."""
    batch_size, num_steps = size
    torch.manual_seed(seed)
    stack = Stack(config, 8, **direction).to("cuda", dtype)
    inputs_BTI = torch.randn(batch_size, num_steps, 8, device="cuda", dtype=dtype)
    ours = results(stack, "triton", inputs_BTI, lengths_B)
    # torch has no GRU of the lecture's form: its other one says what to expect of such numbers.
    other = Stack(replace(config, gru_form="reset_after"), 8, **direction).to("cuda", dtype)
    other.load_state_dict(stack.state_dict(), strict=False)
    theirs = results(other, "torch", inputs_BTI, lengths_B)
    exact = results(stack.double(), "reference", inputs_BTI.double(), lengths_B)
    their_exact = results(other.double(), "reference", inputs_BTI.double(), lengths_B)
    return relative_errors(ours, exact), relative_errors(theirs, their_exact)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", CELLS)
def test_odd_sizes(name: str, size: tuple[int, int, int]) -> None:
    batch_size, hidden_size, num_steps = size
    config = StackConfig(hidden_size=hidden_size, **CELLS[name])
    assert_as_exact_as_cudnn(config, (batch_size, num_steps), torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_other_numbers(dtype: torch.dtype) -> None:
    for name in ("lstm", "gru"):
        assert_as_exact_as_cudnn(StackConfig(hidden_size=257, **CELLS[name]), (20, 70), dtype)


@pytest.mark.parametrize("name", CELLS)
def test_ragged_in_both_directions(name: str) -> None:
    config = StackConfig(hidden_size=40, num_layers=2, **CELLS[name])
    lengths_B = torch.arange(33, device="cuda") % 9 + 1
    assert_as_exact_as_cudnn(config, (33, 9), torch.bfloat16, lengths_B, bidirectional=True)


def test_projection_is_folded_into_the_recurrent_matrix() -> None:
    config = StackConfig(hidden_size=100, projection_size=24)
    assert_as_exact_as_cudnn(config, (20, 30), torch.bfloat16)


@pytest.mark.parametrize(("hidden_size", "batch_size"), [(2048, 4), (1024, 300)])
def test_what_does_not_fit_is_refused(hidden_size: int, batch_size: int) -> None:
    stack = Stack(StackConfig(hidden_size=hidden_size), 8).to("cuda", torch.bfloat16)
    assert executed_plans(stack, batch_size, 3) == {"layers.0": "torch: its LSTM layer"}
    stack.layers[0].kernel = "triton"  # type: ignore[assignment]
    with pytest.raises(UsageError, match="do not fit on the chip"):
        executed_plans(stack, batch_size, 3)


def test_what_is_executed_is_recorded() -> None:
    stack = Stack(StackConfig(hidden_size=40), 8, bidirectional=True).to("cuda", torch.bfloat16)
    with recorded_plans() as plans:
        stack(torch.randn(4, 6, 8, device="cuda", dtype=torch.bfloat16))
    both = "triton: persistent, one launch, both directions"
    assert set(plans_by_layer(stack, plans).values()) == {both}
    with torch.no_grad(), recorded_plans() as plans:  # one step, by name: a sequence of one
        layer = Stack(StackConfig(hidden_size=40, kernel="triton"), 8).to("cuda")
        layer.step(torch.randn(2, 8, device="cuda"), layer.initial_state(2))
    assert list(plans_by_layer(layer, plans).values()) == ["triton: persistent, one launch"]


def test_graphs_replay() -> None:
    stack = Stack(StackConfig(hidden_size=64), 8).to("cuda", torch.bfloat16)
    inputs_BTI = torch.randn(4, 12, 8, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        stack(inputs_BTI)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = stack(inputs_BTI)[0]
        inputs_BTI.normal_()
        graph.replay()
        torch.testing.assert_close(outputs, stack(inputs_BTI)[0])


def test_nothing_hangs_beside_other_work() -> None:
    """Other kernels hold multiprocessors, other processes the whole GPU: a watchdog waits."""
    script = textwrap.dedent(
        """
        import torch
        from elman.nn.stack import Stack, StackConfig
        stacks = [Stack(StackConfig(hidden_size=1024), 64).to("cuda", torch.bfloat16) for _ in "ab"]
        inputs = torch.randn(20, 70, 64, device="cuda", dtype=torch.bfloat16)
        square = torch.randn(4096, 4096, device="cuda")
        streams = [torch.cuda.Stream() for _ in range(3)]
        torch.cuda.synchronize()
        for _ in range(20):
            for stack, stream in zip(stacks, streams):  # each wants nearly the whole device
                with torch.cuda.stream(stream):
                    stack(inputs)[0].float().square().sum().backward()
            with torch.cuda.stream(streams[2]):
                torch.cuda._sleep(2_000_000)
                square = (square @ square).clamp(-1, 1)
        torch.cuda.synchronize()
        print("done")
        """
    )
    running = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        said = [process.communicate(timeout=120)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    assert said == ["done\n", "done\n"]
