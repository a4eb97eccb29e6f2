"""Compiled steps of decoding against the cells' equations, with weights of 4 bytes and of 1."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from torch import Tensor

from elman import testing
from elman.models.recurrent import RecurrentLM, RecurrentLMConfig
from elman.nn.kernels import mkl, products, stream
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


@pytest.mark.parametrize("int8", [False, True], ids=["float32", "int8"])
@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize(("input_size", "hidden_size"), [(1, 1), (4, 3), (20, 20), (30, 257)])
@pytest.mark.parametrize("name", CELLS)
@torch.no_grad()
def test_step_equals_reference(
    name: str, input_size: int, hidden_size: int, batch_size: int, int8: bool
) -> None:
    """Several steps on end, numbers of all sizes, from a state that is not zero."""
    torch.manual_seed(0)
    cell = make_cell(StackConfig(**CELLS[name]), input_size, hidden_size)
    for parameter in cell.parameters():
        parameter.copy_(torch.randn_like(parameter))
    if int8:
        quantise(cell)
    state = other = cell.initial_state(batch_size).map(torch.randn_like)
    for scale in (0.01, 1.0, 30.0):
        inputs_BI = scale * torch.randn(batch_size, input_size)
        assert stream.serves(cell, inputs_BI)
        output, state = stream.step(cell, inputs_BI, state)
        expected, other = cell(inputs_BI, other)
        torch.testing.assert_close(output, expected, rtol=2e-4, atol=2e-5)
        torch.testing.assert_close(state.flatten(), other.flatten(), rtol=2e-4, atol=2e-5)


@pytest.mark.skipif(not mkl.available(), reason="torch has no MKL here")
@pytest.mark.parametrize("int8", [False, True], ids=["float32", "int8"])
@pytest.mark.parametrize("name", CELLS)
def test_shared_products_equal_the_reference(
    name: str, int8: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every matrix multiplied by three threads, rows that do not divide evenly."""
    monkeypatch.setattr(products, "SHARED_BYTES", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    test_step_equals_reference(name, 30, 257, 3, int8)
    hidden, weight, bias = torch.randn(2, 5), torch.randn(7, 5), torch.randn(7)
    found = stream.log_softmax(weight, None, bias, hidden)
    torch.testing.assert_close(found, torch.log_softmax(hidden @ weight.t() + bias, 1))


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


@pytest.mark.parametrize("tied", [False, True], ids=["own matrix", "tied"])
@torch.no_grad()
def test_a_quantised_model_is_one_model(tied: bool) -> None:
    """Its one-byte steps, its whole sequences and its weights all say the same."""
    config = RecurrentLMConfig(num_layers=2, hidden_size=24, embedding_size=24, tied=tied)
    model, exact = testing.build(config), testing.build(config)
    quantise(model)
    testing.check_stepwise_equals_whole(model)
    testing.check_rows_are_independent(model)
    tokens_BT = testing.some_tokens(2, 9)
    rounded, before = testing.whole(model, tokens_BT), testing.whole(exact, tokens_BT)
    assert not torch.equal(rounded, before)
    torch.testing.assert_close(rounded, before, rtol=0.02, atol=0.02)
    for name, weight in model.named_parameters():
        if weight.dim() == 2 and ("cell" in name or "softmax" in name or tied):
            levels = weight / weight.abs().amax(1, keepdim=True) * 127
            torch.testing.assert_close(levels, levels.round(), rtol=0, atol=1e-3)


@torch.no_grad()
def test_rows_of_zeros_can_be_quantised() -> None:
    cell = make_cell(StackConfig(), 4, 5)
    cell.input_weight[3] = 0
    quantise(cell)
    assert cell.input_weight[3].eq(0).all()
    output, _ = stream.step(cell, torch.randn(1, 4), cell.initial_state(1))
    assert output.isfinite().all()


def test_streams_in_threads_do_not_disturb_each_other() -> None:
    model = testing.build(testing.TINY["lstm"])
    found: dict[int, list[int]] = {}

    def greedy(start: int) -> list[int]:
        state, token, said = model.initial_state(1), torch.tensor([start]), []
        with torch.no_grad():
            for _ in range(50):
                logprobs, state = model.step(token, state)
                token = logprobs.argmax(1)
                said.append(int(token))
        return said

    expected = [greedy(start) for start in range(4)]
    threads = [
        threading.Thread(target=lambda i=i: found.__setitem__(i, greedy(i))) for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[i] for i in range(4)] == expected


@pytest.mark.parametrize("int8", [False, True], ids=["float32", "int8"])
@pytest.mark.parametrize("tied", [False, True], ids=["own matrix", "tied"])
@pytest.mark.parametrize("name", CELLS)
@torch.no_grad()
def test_a_whole_model_in_one_call(name: str, tied: bool, int8: bool) -> None:
    """Layers of different widths, a few rows: as reading the whole text at once."""
    torch.manual_seed(0)
    config = RecurrentLMConfig(
        num_layers=3, hidden_size=9, embedding_size=5, tied=tied, **CELLS[name]
    )
    model = testing.build(config)
    if int8:
        quantise(model)
    assert model._compiled_step() is not None
    testing.check_stepwise_equals_whole(model)
    testing.check_state_is_a_value(model)


@pytest.mark.skipif(not mkl.available(), reason="torch has no MKL here")
@pytest.mark.parametrize("int8", [False, True], ids=["float32", "int8"])
@pytest.mark.parametrize("name", ["lstm", "gru torch"])
@torch.no_grad()
def test_a_whole_model_by_all_threads(
    name: str, int8: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Units and words that do not divide evenly by three threads."""
    monkeypatch.setattr(products, "SHARED_BYTES", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    torch.manual_seed(0)
    config = RecurrentLMConfig(num_layers=3, hidden_size=10, embedding_size=5, **CELLS[name])
    model = testing.build(config)
    for parameter in model.parameters():
        parameter.copy_(torch.randn_like(parameter))
    if int8:
        quantise(model)
    compiled = model._compiled_step()
    assert compiled is not None
    assert compiled._shared is not None
    testing.check_stepwise_equals_whole(model)
    testing.check_rows_are_independent(model)
    testing.check_state_is_a_value(model)
    _refuses_unknown_tokens(model)
    token, state = torch.tensor([1]), model.initial_state(1).map(torch.rand_like)
    expected, _ = model.step(token, state)
    found, _ = model.step(token, state.map(torch.Tensor.double))  # other numbers than the weights'
    torch.testing.assert_close(found, expected)


@torch.no_grad()
@pytest.mark.parametrize("vocab_size", [1, 2])
def test_fewer_words_than_threads(vocab_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "SHARED_BYTES", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    torch.manual_seed(0)
    model = RecurrentLMConfig(hidden_size=10, embedding_size=5).build(vocab_size).eval()
    logprobs_BV, _ = model.step(torch.zeros(2, dtype=torch.int64), model.initial_state(2))
    torch.testing.assert_close(logprobs_BV.exp().sum(1), torch.ones(2))


@pytest.mark.parametrize("num_rows", [1, 8])
def test_weights_that_nobody_tells_of(num_rows: int) -> None:
    """Replaced, or changed by an optimiser that raises no version; copies, and inference mode."""
    torch.manual_seed(0)
    model = testing.build(testing.TINY["lstm"])
    tokens, state = torch.arange(num_rows) % 3, model.initial_state(num_rows)

    def steps(of: RecurrentLM) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            whole, _ = of.logprobs(tokens[:, None], tokens[:, None], state)
            return of.step(tokens, state)[0].gather(1, tokens[:, None]), whole

    steps(model)
    copied = copy.deepcopy(model)
    model.load_state_dict({k: 2 * v for k, v in model.state_dict().items()}, assign=True)
    torch.testing.assert_close(*steps(model))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1, fused=True)
    model.train()
    model.logprobs(tokens[:, None], tokens[:, None], state)[0].sum().backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    torch.testing.assert_close(*steps(model.eval()))
    torch.testing.assert_close(*steps(copied))
    with torch.inference_mode():
        torch.testing.assert_close(*steps(testing.build(testing.TINY["lstm"])))


@torch.no_grad()
def test_a_model_whose_weights_moved_or_changed() -> None:
    """Steps follow the parameters, wherever they go."""
    model = testing.build(testing.TINY["lstm"])
    token, state = torch.tensor([3]), model.initial_state(1)
    before, _ = model.step(token, state)
    model.input.embedding.weight.mul_(2.0)  # in place
    changed, _ = model.step(token, state)
    assert not torch.allclose(before, changed)
    for parameter in model.parameters():  # as averaging swaps them
        parameter.data = parameter.data / 2
    swapped, _ = model.step(token, state)
    assert not torch.allclose(changed, swapped)
    testing.check_stepwise_equals_whole(model)
    quantise(model)
    testing.check_stepwise_equals_whole(model)
    double, _ = model.double().step(token, model.initial_state(1))
    assert double.dtype == torch.float64


@torch.no_grad()
def test_models_that_step_part_by_part() -> None:
    for name in ("residual", "adaptive", "character cnn", "lstm peephole", "lstm reference"):
        assert testing.build(testing.TINY[name])._compiled_step() is None, name


@torch.no_grad()
def test_tokens_beyond_the_vocabulary_are_an_error() -> None:
    _refuses_unknown_tokens(testing.build(testing.TINY["lstm"]))


def _refuses_unknown_tokens(model: Any) -> None:
    with pytest.raises(IndexError, match="not in the vocabulary"):
        model.step(torch.tensor([testing.VOCAB_SIZE]), model.initial_state(1))


def test_draws_follow_the_distribution() -> None:
    probabilities = torch.tensor([0.1, 0.0, 0.6, 0.3])
    scores_BV = probabilities.log().expand(4, 4).contiguous()
    with torch.no_grad():
        assert stream.draw(scores_BV, [1e-9, 0.1001, 0.6999, 1.0]).tolist() == [0, 2, 2, 3]
        ruled_out = torch.full((1, 4), -torch.inf)
        assert stream.draw(ruled_out, [0.5]).tolist() == [-1]
        ruled_out[0, 1] = -1000.0
        assert stream.draw(ruled_out, [1.0]).tolist() == [1]
