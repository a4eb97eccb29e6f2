"""Compiled steps of single layers against the cells' equations, in float32 and int8; draws."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from elman.nn.kernels import Purpose, kernel_limits, mkl, plan, recorded_plans, stream
from elman.nn.kernels.model_step import ModelStep, Output
from elman.nn.kernels.planning import COMPILED_STEP, current_limits
from elman.nn.layer import RecurrentLayer
from elman.nn.quantise import quantise
from elman.nn.stack import StackConfig, make_cell
from stack_results import CELLS

pytest.importorskip("numba")


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("int8", [False, True], ids=["float32", "int8"])
@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize(("input_size", "hidden_size"), [(1, 1), (4, 3), (20, 20), (30, 257)])
@pytest.mark.parametrize("name", CELLS)
@torch.no_grad()
def test_step_equals_reference(
    name: str, input_size: int, hidden_size: int, batch_size: int, int8: bool, num_threads: int
) -> None:
    """Several steps in a row, inputs of all sizes, a state that is not zero.

    On three threads, units do not divide evenly.
    """
    if num_threads > 1 and not mkl.available():
        pytest.skip("torch has no MKL here")
    torch.manual_seed(0)
    cell = make_cell(StackConfig(**CELLS[name]), input_size, hidden_size)
    for parameter in cell.parameters():
        parameter.copy_(torch.randn_like(parameter))
    if int8:
        quantise(cell)
    layer = RecurrentLayer(cell)
    state = other = cell.initial_state(batch_size).map(torch.randn_like)
    for scale in (0.01, 1.0, 30.0):
        inputs_BI = scale * torch.randn(batch_size, input_size)
        with kernel_limits(shared_bytes=1, num_threads=num_threads), recorded_plans() as plans:
            output, state = layer.step(inputs_BI, state)
        (executed,) = plans[layer]
        assert executed.variant == COMPILED_STEP
        assert executed.num_parts == (1 if name == "gru lecture" else num_threads)
        expected, other = cell(inputs_BI, other)
        torch.testing.assert_close(output, expected, rtol=2e-4, atol=2e-5)
        torch.testing.assert_close(state.flatten(), other.flatten(), rtol=2e-4, atol=2e-5)


@pytest.mark.skipif(not mkl.available(), reason="torch has no MKL here")
@pytest.mark.parametrize("vocab_size", [1, 2, 7])
@torch.no_grad()
def test_output_layer_on_threads(vocab_size: int) -> None:
    """With fewer words than threads, too."""
    hidden, weight, bias = torch.randn(2, 5), torch.randn(vocab_size, 5), torch.randn(vocab_size)
    step = ModelStep([], output=Output(weight, None, bias))
    for num_parts in (1, 3):
        found, _ = step(hidden, [], num_parts=num_parts)
        torch.testing.assert_close(found, torch.log_softmax(hidden @ weight.t() + bias, 1))


def test_what_the_compiled_steps_leave_to_others() -> None:
    def is_compiled(num_rows: int = 1, dtype: torch.dtype = torch.float32, **options: Any) -> bool:
        cell = make_cell(StackConfig(**options), 4, 5).to(dtype)
        found = plan(
            cell,
            device=torch.device("cpu"),
            dtype=dtype,
            shape=(num_rows, 1, 4),
            purpose=Purpose.MANY_STREAMS,
        )
        return found.variant == COMPILED_STEP

    with torch.no_grad():
        assert is_compiled()
        assert not is_compiled(current_limits().few_streams + 1)
        assert not is_compiled(dtype=torch.double)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert not is_compiled()
        for options in ({"peephole": True}, {"projection_size": 2}, {"layer_norm": True}):
            assert not is_compiled(**options)  # type: ignore[arg-type]
    assert not is_compiled()  # gradients


@torch.no_grad()
def test_rows_of_zeros_can_be_quantised() -> None:
    cell = make_cell(StackConfig(), 4, 5)
    cell.input_weight[3] = 0
    quantise(cell)
    assert cell.input_weight[3].eq(0).all()
    output, _ = RecurrentLayer(cell).step(torch.randn(1, 4), cell.initial_state(1))
    assert output.isfinite().all()


def test_draws_follow_the_distribution() -> None:
    probabilities = torch.tensor([0.1, 0.0, 0.6, 0.3])
    scores_BV = probabilities.log().expand(4, 4).contiguous()
    with torch.no_grad():
        assert stream.draw(scores_BV, [1e-9, 0.1001, 0.6999, 1.0]).tolist() == [0, 2, 2, 3]
        ruled_out = torch.full((1, 4), -torch.inf)
        assert stream.draw(ruled_out, [0.5]).tolist() == [-1]
        ruled_out[0, 1] = -1000.0
        assert stream.draw(ruled_out, [1.0]).tolist() == [1]
