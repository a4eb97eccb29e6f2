"""Copy weights to and from `torch.nn.RNN`, `LSTM` and `GRU`, a whole stack at a time.

torch has two biases per gate where we have one, their sum; and its GRU gate z is 1 - u (see
`GRUCell`), so the rows of u change sign. Everything else is the same numbers in the same order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from elman.base.errors import UsageError
from elman.nn.bidirectional import Bidirectional
from elman.nn.cells import Cell, GRUCell, LSTMCell, RNNCell
from elman.nn.kernels import torch_rnn
from elman.nn.kernels.planning import torch_has
from elman.nn.layer import RecurrentLayer
from elman.nn.stack import Stack, StackConfig

TorchRNN = nn.RNN | nn.LSTM | nn.GRU

MODULES: dict[type[Cell], tuple[str, type[TorchRNN]]] = {
    RNNCell: ("rnn", nn.RNN),
    LSTMCell: ("lstm", nn.LSTM),
    GRUCell: ("gru", nn.GRU),
}


def from_torch(module: TorchRNN) -> Stack:
    """Make a batch-first stack that computes what `module` computes, with a copy of its weights."""
    kinds = {torch_class: kind for kind, torch_class in MODULES.values()}
    config = StackConfig(  # whose gru_form is torch's by default
        cell=kinds[type(module)],
        nonlinearity=getattr(module, "nonlinearity", "tanh"),
        projection_size=module.proj_size,
        num_layers=module.num_layers,
        hidden_size=module.hidden_size,
        dropout_hidden=float(module.dropout),
        locked=False,
    )
    weight = next(module.parameters())
    stack = Stack(config, module.input_size, bidirectional=module.bidirectional)
    stack.to(weight.device, weight.dtype)
    for cell, suffix in _cells(stack):
        _read(cell, {name: _weight(module, name, suffix) for name in _NAMES})
    return stack.train(module.training)


def to_torch(stack: Stack) -> TorchRNN:
    """Make a batch-first torch module that computes what `stack` computes, with a copy of its
    weights."""
    cells = _cells(stack)
    first = cells[0][0]
    config = stack.config
    sizes = {(cell.hidden_size, cell.output_size) for cell, _ in cells}
    merged = stack.bidirectional and stack.merge != "concat"
    unknown = not torch_has(first)
    changed = config.weight_drop or config.dropout_state or config.sum_layers
    if unknown or merged or config.join != "plain" or len(sizes) > 1 or changed:
        raise UsageError(
            "torch has no module for this stack",
            "it takes plain joins, concatenated directions, layers of one size, no weight drop, "
            "state dropout, sums of layers, capped gates, mogrifiers, "
            "peepholes, layer normalisation, sigmoid RNN or GRU with reset_before",
        )
    kind, torch_class = MODULES[type(first)]
    options: dict[str, Any] = {}
    if kind == "rnn":
        options["nonlinearity"] = config.nonlinearity
    if config.projection_size:
        options["proj_size"] = config.projection_size
    module = torch_class(
        stack.input_size,
        config.hidden_size,
        config.num_layers,
        batch_first=True,
        dropout=config.dropout_hidden,
        bidirectional=stack.bidirectional,
        **options,
    ).to(first.bias.device, first.bias.dtype)
    with torch.no_grad():
        for cell, suffix in cells:
            weights = torch_rnn.torch_weights(cell, cell.recurrent_weight)
            for name, weight in zip(_NAMES, weights, strict=False):
                _weight(module, name, suffix).copy_(weight)
    return module.train(stack.training)


_NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")


def _weight(module: nn.Module, name: str, suffix: str) -> Any:
    return getattr(module, name + suffix, None)


def _cells(stack: Stack) -> list[tuple[Cell, str]]:
    """List every cell of a stack, with the suffix of its weight names in torch."""
    cells: list[tuple[Cell, str]] = []
    for level, layer in enumerate(stack.layers):
        if isinstance(layer, Bidirectional):
            cells.append((layer.rightward.cell, f"_l{level}"))
            cells.append((layer.leftward.cell, f"_l{level}_reverse"))
        else:
            assert isinstance(layer, RecurrentLayer)
            cells.append((layer.cell, f"_l{level}"))
    return cells


@torch.no_grad()
def _read(cell: Cell, weights: dict[str, Any]) -> None:
    zeros = torch.zeros_like(cell.bias)
    first = zeros if weights["bias_ih"] is None else weights["bias_ih"]
    second = zeros if weights["bias_hh"] is None else weights["bias_hh"]
    sign = torch.ones_like(cell.bias)
    if isinstance(cell, GRUCell):
        gates = 2 * cell.hidden_size
        sign[cell.hidden_size : gates] = -1
        assert cell.recurrent_bias is not None
        cell.recurrent_bias.copy_(second[gates:])
        second = torch.cat([second[:gates], zeros[gates:]])
    cell.input_weight.copy_(weights["weight_ih"] * sign.unsqueeze(1))
    cell.recurrent_weight.copy_(weights["weight_hh"] * sign.unsqueeze(1))
    cell.bias.copy_((first + second) * sign)
    if isinstance(cell, LSTMCell) and cell.projection_weight is not None:
        cell.projection_weight.copy_(weights["weight_hr"])
