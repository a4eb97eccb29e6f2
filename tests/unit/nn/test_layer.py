"""Layers and stacks: lengths, direction, weight drop, joins, merges."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from elman.base.config import UnreadSetting
from elman.base.errors import UsageError
from elman.nn.cells import Cell, LSTMCell
from elman.nn.kernels import recorded_plans
from elman.nn.layer import RecurrentLayer
from elman.nn.stack import CELLS, READS, Stack, StackConfig, make_cell
from elman.nn.state import State
from stack_results import make_stack
from tiny_models import CHANGED


def stack(input_size: int = 4, **options: Any) -> Stack:
    torch.manual_seed(3)
    return make_stack(input_size, hidden_size=5, **options).double()


def some_inputs(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7), dtype=torch.double)


@pytest.mark.parametrize("kernel", ["reference", "torch"])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(
    "options",
    [{}, {"cell": "gru"}, {"cell": "rnn"}, {"join": "residual"}, {"join": "highway"}],
    ids=str,
)
def test_blind_to_padding(options: dict[str, Any], bidirectional: bool, kernel: str) -> None:
    """Rows of a padded batch come out as they do alone; what lies beyond is zero."""
    layers = stack(num_layers=2, bidirectional=bidirectional, kernel=kernel, **options)
    inputs_BTI, lengths = some_inputs(3, 6, 4), [4, 6, 1]
    outputs, state = layers(inputs_BTI, None, torch.tensor(lengths))
    for row, length in enumerate(lengths):
        alone, alone_state = layers(inputs_BTI[row : row + 1, :length])
        torch.testing.assert_close(outputs[row : row + 1, :length], alone)
        assert outputs[row, length:].eq(0).all()
        torch.testing.assert_close(state.select([row]).flatten(), alone_state.flatten())
    changed = inputs_BTI.clone()
    changed[0, 4:] = 99.0
    torch.testing.assert_close(layers(changed, None, torch.tensor(lengths))[0], outputs)


def test_padding_gets_no_gradient() -> None:
    layers = stack(num_layers=2, bidirectional=True)
    inputs_BTI = some_inputs(2, 5, 4).requires_grad_()
    outputs, _ = layers(inputs_BTI, None, torch.tensor([2, 5]))
    outputs.sum().backward()
    assert inputs_BTI.grad is not None
    assert inputs_BTI.grad[0, 2:].eq(0).all()
    assert inputs_BTI.grad[0, :2].ne(0).all()


def test_full_lengths_are_no_lengths() -> None:
    layers = stack()
    inputs_BTI = some_inputs(2, 5, 4)
    torch.testing.assert_close(
        layers(inputs_BTI, None, torch.tensor([5, 5]))[0], layers(inputs_BTI)[0]
    )


def test_reverse_reads_from_the_end() -> None:
    torch.manual_seed(0)
    cell = LSTMCell(4, 5)
    forward, backward = RecurrentLayer(cell), RecurrentLayer(cell, reverse=True)
    inputs_BTI = some_inputs(2, 6, 4).float()
    outputs, state = backward(inputs_BTI)
    flipped, flipped_state = forward(inputs_BTI.flip(1))
    torch.testing.assert_close(outputs, flipped.flip(1))
    torch.testing.assert_close(state.flatten(), flipped_state.flatten())


@pytest.mark.parametrize("merge", ["concat", "mean", "sum"])
def test_merging_two_directions(merge: str) -> None:
    layers = stack(bidirectional=True, merge=merge)
    level = layers.layers[0]
    inputs_BTI = some_inputs(2, 6, 4)
    right, left = level.rightward(inputs_BTI)[0], level.leftward(inputs_BTI)[0]  # type: ignore[operator]
    expected = {
        "concat": torch.cat([right, left], dim=-1),
        "mean": (right + left) / 2,
        "sum": right + left,
    }[merge]
    outputs, state = layers(inputs_BTI)
    torch.testing.assert_close(outputs, expected)
    assert layers.output_size == expected.shape[-1]
    assert set(state.part("0")) == {"forward", "backward"}


def test_joins_by_their_formulas() -> None:
    inputs_BTI = some_inputs(2, 6, 5)
    for join in ("plain", "residual", "highway", "dense"):
        layers = stack(5, num_layers=3, join=join)
        x = inputs_BTI
        seen = [x]
        for level, layer in enumerate(layers.layers):
            entering = torch.cat(seen, dim=-1) if join == "dense" else x
            computed = layer(entering)[0]
            if join == "residual":
                x = x + computed
            elif join == "highway":
                gate = torch.sigmoid(layers.joins[level].gate(x))  # type: ignore[operator, union-attr]
                x = gate * computed + (1 - gate) * x
            else:
                x = computed
            seen.append(x)
        torch.testing.assert_close(layers(inputs_BTI)[0], x)
        outputs, _ = layers.all_layers(inputs_BTI)
        torch.testing.assert_close(outputs, seen[1:])


@pytest.mark.parametrize("join", ["residual", "highway"])
def test_joins_carry_through_a_matrix_where_widths_differ(join: str) -> None:
    layers = stack(4, num_layers=2, join=join, last_size=3)
    assert layers(some_inputs(2, 6, 4))[0].shape == (2, 6, 3)
    carried = [name for name, _ in layers.named_parameters() if "carry" in name]
    assert carried == ["joins.0.carry.weight", "joins.1.carry.weight"]


@pytest.mark.parametrize("join", ["plain", "residual", "highway", "dense"])
def test_step_equals_whole(join: str) -> None:
    layers = stack(num_layers=2, join=join)
    inputs_BTI = some_inputs(2, 4, 4)
    whole, whole_state = layers(inputs_BTI)
    state = layers.initial_state(2)
    for time in range(4):
        output, state = layers.step(inputs_BTI[:, time], state)
        torch.testing.assert_close(output, whole[:, time])
    torch.testing.assert_close(state.flatten(), whole_state.flatten())


def test_bidirectional_stacks_do_not_step() -> None:
    layers = stack(bidirectional=True)
    with pytest.raises(UsageError, match="bidirectional"):
        layers.step(some_inputs(2, 4), layers.initial_state(2))


@pytest.mark.parametrize("cell", [*CELLS, "own_package:OwnCell"])
@pytest.mark.parametrize("name", CHANGED)
def test_a_cell_reads_a_setting_or_refuses_it(cell: str, name: str) -> None:
    assert set(CHANGED) == {name for names in READS.values() for name in names}
    if name in READS.get(cell, ()):
        changed = make_cell(StackConfig(cell=cell, **{name: CHANGED[name]}), 3, 4)
        assert not _alike(changed, make_cell(StackConfig(cell=cell), 3, 4))
        return
    with pytest.raises(UnreadSetting, match=f"'model.{name}'") as error:
        StackConfig(cell=cell, **{name: CHANGED[name]})
    assert error.value.path == f"model.{name}"
    assert str(next(c for c in READS if name in READS[c])) in (error.value.hint or "")


def _alike(one: Cell, other: Cell) -> bool:
    """Whether two cells compute the same with the same random matrices."""
    results = []
    for cell in (one, other):
        torch.manual_seed(0)
        for parameter in cell.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter)
        inputs_BI = torch.tensor([[0.3, -2.0, 0.7]])
        state = cell.initial_state(1).map(lambda part: torch.full_like(part, 0.5))
        results.append(cell(inputs_BI, state)[0])
    return results[0].shape == results[1].shape and torch.allclose(*results)


def test_a_stack_has_layers() -> None:
    with pytest.raises(UsageError, match="num_layers"):
        stack(num_layers=0)


@pytest.mark.parametrize("kernel", ["reference", "torch"])
def test_weight_drop_thins_the_recurrent_matrix_alone(kernel: str) -> None:
    """One thinned matrix serves the whole sequence, scaled, and the layer keeps its own."""
    torch.manual_seed(0)
    layer = RecurrentLayer(LSTMCell(4, 5), kernel=kernel, weight_drop=0.5)
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    inputs_BTI = some_inputs(2, 6, 4).float()
    torch.manual_seed(11)
    outputs, _ = layer(inputs_BTI)

    torch.manual_seed(11)
    thinned = torch.nn.functional.dropout(layer.cell.recurrent_weight.detach(), 0.5)
    own = layer.cell.recurrent_weight.detach()
    assert set(torch.unique(thinned / own).round(decimals=4).tolist()) == {0.0, 2.0}
    plain = RecurrentLayer(LSTMCell(4, 5))
    plain.load_state_dict(before)
    with torch.no_grad():
        plain.cell.recurrent_weight.copy_(thinned)
    torch.testing.assert_close(outputs, plain(inputs_BTI)[0])

    torch.testing.assert_close(layer.state_dict(), before, rtol=0, atol=0)
    layer.eval()
    with torch.no_grad():
        plain.cell.recurrent_weight.copy_(own)
    torch.testing.assert_close(layer(inputs_BTI)[0], plain(inputs_BTI)[0])


def test_weight_drop_gradients_reach_what_was_kept() -> None:
    torch.manual_seed(0)
    layer = RecurrentLayer(LSTMCell(4, 5), weight_drop=0.5)
    torch.manual_seed(11)
    layer(some_inputs(2, 6, 4).float())[0].sum().backward()
    torch.manual_seed(11)
    kept = torch.nn.functional.dropout(torch.ones(20, 5), 0.5).ne(0)
    assert layer.cell.recurrent_weight.grad is not None
    assert torch.equal(layer.cell.recurrent_weight.grad.ne(0), kept)


def test_weight_drop_holds_for_single_steps() -> None:
    torch.manual_seed(0)
    layer = RecurrentLayer(LSTMCell(4, 5), weight_drop=0.5)
    state = layer.initial_state(2).map(torch.randn_like)
    inputs_BI = some_inputs(2, 4).float()
    torch.manual_seed(5)
    dropped, _ = layer.step(inputs_BI, state)
    torch.manual_seed(5)
    torch.testing.assert_close(dropped, layer(inputs_BI.unsqueeze(1), state)[0].squeeze(1))
    layer.eval()
    assert not torch.allclose(layer.step(inputs_BI, state)[0], dropped)


def test_outputs_lie_time_first_in_memory() -> None:
    """What one layer gives the next takes without a copy."""
    layers = stack(num_layers=2)
    outputs, _ = layers(some_inputs(6, 2, 4).transpose(0, 1))
    assert outputs.transpose(0, 1).is_contiguous()


def test_dropout_between_layers_only_while_training() -> None:
    layers = stack(num_layers=2, dropout_hidden=0.5)
    inputs_BTI = some_inputs(2, 6, 4)
    assert not torch.equal(layers(inputs_BTI)[0], layers(inputs_BTI)[0])
    layers.eval()
    assert torch.equal(layers(inputs_BTI)[0], layers(inputs_BTI)[0])
    one = stack(num_layers=1, dropout_hidden=0.5)
    assert torch.equal(one(inputs_BTI)[0], one(inputs_BTI)[0])  # nothing lies between


def test_state_dtype_is_kept_under_autocast() -> None:
    torch.manual_seed(0)
    for cell in ("lstm", "gru", "rnn"):
        layers = Stack(StackConfig(hidden_size=5, cell=cell, num_layers=2), 4)  # type: ignore[arg-type]
        exact, _ = layers(some_inputs(2, 6, 4).float())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outputs, state = layers(some_inputs(2, 6, 4).float())
        assert outputs.dtype == torch.bfloat16
        assert isinstance(state, State)
        assert {tensor.dtype for tensor in state.flatten().values()} == {torch.float32}
        torch.testing.assert_close(outputs.float(), exact, rtol=0.05, atol=0.02)


def test_state_dropout_is_refused_by_kernels_without_it() -> None:
    torch.manual_seed(0)
    config = StackConfig(cell="lstm", hidden_size=6, num_layers=2, dropout_state=0.5)
    stack = Stack(config, 6)
    inputs_BTI = torch.randn(3, 4, 6)
    with recorded_plans() as record:
        stack(inputs_BTI)
    plans = [plan for each in record.values() for plan in each]
    assert {plan.kernel for plan in plans} == {"stepwise"}
    assert "not torch: it does not drop out the state" in plans[0].reason
    one, two = stack(inputs_BTI)[0], stack(inputs_BTI)[0]
    assert not torch.equal(one, two)
    stack.eval()
    torch.testing.assert_close(stack(inputs_BTI)[0], stack(inputs_BTI)[0])
    named = Stack(replace(config, kernel="torch"), 6)
    with pytest.raises(UsageError, match="does not drop out the state"):
        named(inputs_BTI)


def test_the_sum_of_layers() -> None:
    torch.manual_seed(0)
    config = StackConfig(hidden_size=5, num_layers=3, sum_layers=True)
    stack = Stack(config, 4).eval()
    plain = Stack(replace(config, sum_layers=False), 4).eval()
    plain.load_state_dict(stack.state_dict())
    inputs_BTI = torch.randn(2, 7, 4)
    each, _ = plain.all_layers(inputs_BTI)
    outputs_BTP, _ = stack(inputs_BTI)
    torch.testing.assert_close(outputs_BTP, each[0] + each[1] + each[2])
    state = stack.initial_state(2)
    for t in range(7):
        output_BP, state = stack.step(inputs_BTI[:, t], state)
        torch.testing.assert_close(output_BP, outputs_BTP[:, t])
    with pytest.raises(UsageError, match="different widths"):
        Stack(config, 4, last_size=3)
