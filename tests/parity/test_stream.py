"""Compiled steps of single layers against the cells' equations, in float32 and int8; draws."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from elman.nn.kernels import mkl, stream
from elman.nn.kernels.model_step import ModelStep, Output, StepLimits, Way
from elman.nn.layer import RecurrentLayer
from elman.nn.quantise import quantise
from elman.nn.stack import StackConfig, make_cell

pytest.importorskip("numba")

CELLS: dict[str, dict[str, Any]] = {
    "lstm": {},
    "gru lecture": {"cell": "gru", "gru_form": "reset_before"},
    "gru torch": {"cell": "gru", "gru_form": "reset_after"},
    "mingru": {"cell": "mingru"},
    "minlstm": {"cell": "minlstm"},
    "sru": {"cell": "sru"},
}


@pytest.mark.parametrize("limits", [StepLimits(), StepLimits(shared_bytes=1)], ids=["1", "threads"])
@pytest.mark.parametrize("int8", [False, True], ids=["float32", "int8"])
@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize(("input_size", "hidden_size"), [(1, 1), (4, 3), (20, 20), (30, 257)])
@pytest.mark.parametrize("name", CELLS)
@torch.no_grad()
def test_step_equals_reference(
    name: str,
    input_size: int,
    hidden_size: int,
    batch_size: int,
    int8: bool,
    limits: StepLimits,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Several steps in a row, inputs of all sizes, a state that is not zero.

    On three threads, so that units do not divide evenly.
    """
    if limits.shared_bytes == 1:
        if not mkl.available():
            pytest.skip("torch has no MKL here")
        monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    torch.manual_seed(0)
    cell = make_cell(StackConfig(**CELLS[name]), input_size, hidden_size)
    for parameter in cell.parameters():
        parameter.copy_(torch.randn_like(parameter))
    if int8:
        quantise(cell)
    step = ModelStep([cell], limits=limits)
    threads = limits.shared_bytes == 1 and name != "gru lecture"
    assert step.way(batch_size) is (Way.THREADS if threads else Way.IN_PLACE)
    state = other = cell.initial_state(batch_size).map(torch.randn_like)
    for scale in (0.01, 1.0, 30.0):
        inputs_BI = scale * torch.randn(batch_size, input_size)
        output, (state,) = step(inputs_BI, [state])
        expected, other = cell(inputs_BI, other)
        torch.testing.assert_close(output, expected, rtol=2e-4, atol=2e-5)
        torch.testing.assert_close(state.flatten(), other.flatten(), rtol=2e-4, atol=2e-5)


@pytest.mark.skipif(not mkl.available(), reason="torch has no MKL here")
@pytest.mark.parametrize("vocab_size", [1, 2, 7])
@torch.no_grad()
def test_output_layer_on_threads(vocab_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer words than threads, too."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    hidden, weight, bias = torch.randn(2, 5), torch.randn(vocab_size, 5), torch.randn(vocab_size)
    expected = torch.log_softmax(hidden @ weight.t() + bias, 1)
    for limits in (StepLimits(), StepLimits(shared_bytes=1)):
        found, _ = ModelStep([], output=Output(weight, None, bias), limits=limits)(hidden, [])
        torch.testing.assert_close(found, expected)


def test_what_the_compiled_steps_leave_to_others() -> None:
    cell = make_cell(StackConfig(), 4, 5)
    with torch.no_grad():
        assert stream.serves(cell, torch.randn(1, 4))
        assert not stream.serves(cell, torch.randn(stream.FEW_ROWS + 1, 4))
        assert not stream.serves(cell.double(), torch.randn(1, 4, dtype=torch.double))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert not stream.serves(make_cell(StackConfig(), 4, 5), torch.randn(1, 4))
        for options in ({"peephole": True}, {"projection_size": 2}, {"layer_norm": True}):
            extras = make_cell(StackConfig(**options), 4, 5)  # type: ignore[arg-type]
            assert not stream.serves(extras, torch.randn(1, 4))
    assert not stream.serves(make_cell(StackConfig(), 4, 5), torch.randn(1, 4))  # gradients


def test_without_numba_steps_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer = RecurrentLayer(make_cell(StackConfig(), 4, 5))
    inputs_BI, state = torch.randn(1, 4), layer.initial_state(1)
    with torch.no_grad():
        compiled, _ = layer.step(inputs_BI, state)
        monkeypatch.setattr(stream, "numba", None)
        assert not stream.is_stream(inputs_BI)
        torch.testing.assert_close(layer.step(inputs_BI, state)[0], compiled)


@torch.no_grad()
def test_rows_of_zeros_can_be_quantised() -> None:
    cell = make_cell(StackConfig(), 4, 5)
    cell.input_weight[3] = 0
    quantise(cell)
    assert cell.input_weight[3].eq(0).all()
    output, _ = stream.step(cell, torch.randn(1, 4), cell.initial_state(1))
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
