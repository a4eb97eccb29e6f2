"""Cells, layers and stacks against torch's own modules, forward and backward, in float64."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from elman.base.errors import UsageError
from elman.nn.kernels import recorded_plans, torch_rnn
from elman.nn.layer import RecurrentLayer
from elman.nn.stack import Stack, StackConfig
from elman.nn.state import State
from elman.nn.torch_weights import from_torch, to_torch
from stack_results import make_stack, set_kernel

MODULES: dict[str, Callable[..., nn.RNNBase]] = {
    "tanh": lambda *a, **k: nn.RNN(*a, nonlinearity="tanh", **k),
    "relu": lambda *a, **k: nn.RNN(*a, nonlinearity="relu", **k),
    "lstm": nn.LSTM,
    "projected": lambda *a, **k: nn.LSTM(*a, proj_size=3, **k),
    "gru": nn.GRU,
}


@pytest.fixture(autouse=True)
def _quiet_projections() -> Iterator[None]:
    # torch's own module warns that oneDNN has no projections.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "LSTM with projections")
        yield


def make(name: str, **options: object) -> nn.RNNBase:
    torch.manual_seed(5)
    return MODULES[name](4, 5, batch_first=True, **options).double()


def states(module: nn.RNNBase, stack: Stack, batch_size: int) -> tuple[State, object]:
    """The same random initial state, as ours and as torch's, with gradients wanted."""
    state = stack.initial_state(batch_size).map(
        lambda tensor: torch.randn_like(tensor).requires_grad_()
    )
    flat = state.flatten()
    h, c = (
        torch.stack([tensor for name, tensor in flat.items() if name.endswith(part)])
        if any(name.endswith(part) for name in flat)
        else None
        for part in (".h", ".c")
    )
    return state, (h, c) if isinstance(module, nn.LSTM) else h


def gradients(outputs: list[Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """Gradients of a fixed random combination of all outputs."""
    generator = torch.Generator().manual_seed(9)
    total = sum(
        (tensor * torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)).sum()
        for tensor in outputs
    )
    return list(torch.autograd.grad(total, inputs))


def assert_equal(ours: list[Tensor], theirs: list[Tensor]) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


def run_torch(
    module: nn.RNNBase, inputs_BTI: Tensor, hidden: object, lengths_B: Tensor | None
) -> tuple[Tensor, list[Tensor]]:
    if lengths_B is None:
        outputs, after = module(inputs_BTI, hidden)
    else:
        packed = pack_padded_sequence(inputs_BTI, lengths_B, batch_first=True, enforce_sorted=False)
        packed_outputs, after = module(packed, hidden)
        outputs, _ = pad_packed_sequence(
            packed_outputs, batch_first=True, total_length=inputs_BTI.shape[1]
        )
    return outputs, list(after) if isinstance(after, tuple) else [after]


def final_states(state: State) -> list[Tensor]:
    flat = state.flatten()
    return [
        torch.stack([tensor for name, tensor in flat.items() if name.endswith(part)])
        for part in (".h", ".c")
        if any(name.endswith(part) for name in flat)
    ]


@pytest.mark.parametrize("lengths", [None, [7, 1, 4]], ids=["whole", "ragged"])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one way", "both ways"])
@pytest.mark.parametrize("kernel", ["torch", "reference"])
@pytest.mark.parametrize("name", MODULES)
def test_stack_equals_torch(
    name: str, kernel: str, bidirectional: bool, lengths: list[int] | None
) -> None:
    """Outputs, final states and all gradients, from a nonzero state, through the final state."""
    module = make(name, num_layers=2, bidirectional=bidirectional)
    stack = from_torch(module)
    set_kernel(stack, kernel if name != "projected" else "reference")
    inputs_BTI = torch.randn(3, 7, 4, dtype=torch.double, requires_grad=True)
    lengths_B = None if lengths is None else torch.tensor(lengths)
    state, hidden = states(module, stack, 3)

    outputs, after = stack(inputs_BTI, state, lengths_B)
    their_outputs, their_after = run_torch(module, inputs_BTI, hidden, lengths_B)
    ours, theirs = [outputs, *final_states(after)], [their_outputs, *their_after]
    assert_equal(ours, theirs)

    sources = [inputs_BTI, *state.flatten().values()]
    assert_equal(gradients(ours, sources), gradients(theirs, sources))


@pytest.mark.parametrize("name", ["tanh", "lstm", "gru"])
@pytest.mark.parametrize("lengths", [None, [6, 2, 3]], ids=["whole", "ragged"])
def test_kernels_give_the_same_weight_gradients(name: str, lengths: list[int] | None) -> None:
    """Every parameter of ours, through the torch kernel and through the cell's equations."""
    stack = from_torch(make(name, num_layers=2, bidirectional=True))
    inputs_BTI = torch.randn(3, 6, 4, dtype=torch.double)
    lengths_B = None if lengths is None else torch.tensor(lengths)
    results = []
    for kernel in ("reference", "torch"):
        set_kernel(stack, kernel)
        outputs, after = stack(inputs_BTI, None, lengths_B)
        results.append(gradients([outputs, *final_states(after)], list(stack.parameters())))
    assert_equal(*results)


@pytest.mark.parametrize("bidirectional", [False, True], ids=["one way", "both ways"])
@pytest.mark.parametrize("name", MODULES)
def test_weights_survive_the_way_there_and_back(name: str, bidirectional: bool) -> None:
    module = make(name, num_layers=2, bidirectional=bidirectional, dropout=0.5).eval()
    stack = from_torch(module)
    again = to_torch(stack)
    assert type(again) is type(module)
    assert again.dropout == 0.5
    assert not again.training
    inputs_BTI = torch.randn(2, 5, 4, dtype=torch.double)
    assert_equal([again(inputs_BTI)[0]], [module(inputs_BTI)[0]])
    third = from_torch(again)
    assert_equal(list(third.parameters()), list(stack.parameters()))


@pytest.mark.parametrize("name", MODULES)
def test_modules_without_biases(name: str) -> None:
    module = make(name, bias=False)
    inputs_BTI = torch.randn(2, 5, 4, dtype=torch.double)
    assert_equal([from_torch(module)(inputs_BTI)[0]], [module(inputs_BTI)[0]])


@pytest.mark.parametrize(
    "options",
    [
        {"peephole": True},
        {"layer_norm": True},
        {"cell": "rnn", "nonlinearity": "sigmoid"},
        {"cell": "gru", "gru_form": "reset_before"},
        {"join": "residual"},
        {"bidirectional": True, "merge": "sum"},
        {"num_layers": 2, "last_size": 3},
        {"weight_drop": 0.1},
    ],
    ids=str,
)
def test_what_torch_has_no_module_for(options: dict[str, Any]) -> None:
    stack = make_stack(4, hidden_size=4, **options)
    with pytest.raises(UsageError, match="torch has no module"):
        to_torch(stack)


@pytest.mark.parametrize(
    "options", [{}, {"cell": "gru"}, {"cell": "rnn"}, {"cell": "rnn", "nonlinearity": "relu"}]
)
def test_single_steps_are_torchs_where_asked_for(options: dict[str, Any]) -> None:
    stack = Stack(StackConfig(hidden_size=5, kernel="torch", **options), 4).double()
    for parameter in stack.parameters():
        torch.nn.init.normal_(parameter)
    state = stack.initial_state(3).map(torch.randn_like)
    inputs_BI = torch.randn(3, 4, dtype=torch.double)
    with recorded_plans() as plans:
        found = stack.step(inputs_BI, state)
    ((plan,),) = plans.values()
    assert plan.kernel == "torch"
    set_kernel(stack, "reference")
    exact = stack.step(inputs_BI, state)
    torch.testing.assert_close(found[0], exact[0])
    torch.testing.assert_close(found[1].flatten(), exact[1].flatten())


@pytest.mark.parametrize(
    "options", [{}, {"projection_size": 3}, {"cell": "gru"}, {"cell": "rnn"}], ids=str
)
def test_weights_in_one_block_are_the_same(options: dict[str, Any]) -> None:
    """What cuDNN is given: values and gradients as of scattered weights, in one piece."""
    layer = Stack(StackConfig(hidden_size=5, **options), 4).double().layers[0]
    assert isinstance(layer, RecurrentLayer)
    cell = layer.cell
    for parameter in cell.parameters():
        torch.nn.init.normal_(parameter)
    block = torch_rnn._in_one_block(cell, cell.recurrent_weight, torch.double)
    scattered = torch_rnn.torch_weights(cell, cell.recurrent_weight)
    assert len({weight.untyped_storage().data_ptr() for weight in block}) == 1
    torch.testing.assert_close(block, scattered, rtol=0, atol=0)
    slopes = [torch.randn_like(weight) for weight in block]
    found = []
    for weights in (block, scattered):
        total = sum((weight * slope).sum() for weight, slope in zip(weights, slopes, strict=True))
        found.append(torch.autograd.grad(total, list(cell.parameters())))
    torch.testing.assert_close(*found, rtol=0, atol=0)
