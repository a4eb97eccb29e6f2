"""torch's own recurrent layers where they apply: oneDNN on the CPU, cuDNN on CUDA.

torch computes the tanh and ReLU RNN, the LSTM with or without projection and the GRU with the reset
after the product (`planning.torch_has`); no peepholes, no clipping, no layer normalisation, no
sigmoid RNN. It keeps two biases per gate where we keep one (the second is zero here) and its GRU
gate z is 1 - u (the rows of u change sign here).

B batch, T time steps, I inputs, P outputs, H hidden, G gates times hidden units.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from elman.nn.cells import Cell, GRUCell, LSTMCell
from elman.nn.kernels.planning import KernelPlan
from elman.nn.shapes import Float, Int
from elman.nn.state import State


def run(
    cell: Cell,
    inputs_BTI: Float[Tensor, "B T I"],
    state: State,
    lengths_B: Int[Tensor, "B"] | None,
    recurrent_weight: Float[Tensor, "G P"],
    plan: KernelPlan | None = None,
) -> tuple[Float[Tensor, "B T P"], State]:
    """The whole sequence in one call of torch."""
    device = inputs_BTI.device.type
    dtype = inputs_BTI.dtype
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    if device == "cuda":
        weights = _in_one_block(cell, recurrent_weight, dtype)
    else:
        weights = [weight.to(dtype) for weight in torch_weights(cell, recurrent_weight)]
    before = {key: state.tensor(key) for key in cell.state_sizes}
    hidden = [tensor.to(dtype).unsqueeze(0) for tensor in before.values()]
    # All casts are done: autocast would only cast and copy again.
    with torch.autocast(device, enabled=False):
        inputs_TBI = inputs_BTI.to(dtype).transpose(0, 1)
        if lengths_B is None:
            outputs_TBP, after = _call(cell, (inputs_TBI,), hidden, weights)
        else:
            packed = pack_padded_sequence(inputs_TBI, lengths_B.cpu(), enforce_sorted=False)
            outputs_TBP, after = _packed_call(cell, packed, hidden, weights, inputs_TBI.shape[0])
    new_state = State(
        {
            key: new.squeeze(0).to(old.dtype)
            for (key, old), new in zip(before.items(), after, strict=True)
        }
    )
    return outputs_TBP.transpose(0, 1), new_state


def step(
    cell: Cell,
    inputs_BI: Float[Tensor, "B I"],
    state: State,
    plan: KernelPlan | None = None,
) -> tuple[Float[Tensor, "B P"], State]:
    """One step by torch's cell; a projected LSTM, of which it has none, as a sequence of one."""
    if isinstance(cell, LSTMCell) and cell.projection_weight is not None:
        inputs_B1I, U = inputs_BI.unsqueeze(1), cell.recurrent_weight
        outputs_B1P, state = run(cell, inputs_B1I, state, None, U)
        return outputs_B1P.squeeze(1), state
    weights = torch_weights(cell, cell.recurrent_weight)
    h_BH = state.tensor("h")
    if isinstance(cell, LSTMCell):
        c_BH = state.tensor("c")
        new_h_BH, new_c_BH = torch.lstm_cell(inputs_BI, (h_BH, c_BH), *weights)
        return new_h_BH, State({"h": new_h_BH.to(h_BH.dtype), "c": new_c_BH.to(c_BH.dtype)})
    function = {"tanh": torch.rnn_tanh_cell, "relu": torch.rnn_relu_cell}.get(
        getattr(cell, "nonlinearity", ""), torch.gru_cell
    )
    new_h_BH = function(inputs_BI, h_BH, *weights)
    return new_h_BH, State({"h": new_h_BH.to(h_BH.dtype)})


def torch_weights(cell: Cell, recurrent_weight: Float[Tensor, "G P"]) -> list[Tensor]:
    """The cell's weights as torch stores them: W, U, input bias, recurrent bias[, projection].

    A product with signs, not an assignment, so that gradients reach the cell's parameters.
    """
    if isinstance(cell, GRUCell):
        assert cell.recurrent_bias is not None  # torch has no other form
        gates = 2 * cell.hidden_size
        sign = torch.ones_like(cell.bias)
        sign[cell.hidden_size : gates] = -1
        matrices = [matrix * sign.unsqueeze(1) for matrix in (cell.input_weight, recurrent_weight)]
        return [*matrices, cell.bias * sign, F.pad(cell.recurrent_bias, (gates, 0))]
    weights = [cell.input_weight, recurrent_weight, cell.bias, torch.zeros_like(cell.bias)]
    if isinstance(cell, LSTMCell) and cell.projection_weight is not None:
        weights.append(cell.projection_weight)
    return weights


def _call(
    cell: Cell, data: tuple[Tensor, ...], hidden: list[Tensor], weights: list[Tensor]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    # One layer, with biases, no dropout, one direction; `train` only matters to cuDNN, which
    # otherwise keeps nothing for the backward pass.
    train = torch.is_grad_enabled()
    options: tuple[bool | int | float, ...] = (True, 1, 0.0, train, False)
    if len(data) == 1:
        options = (*options, False)  # not batch first
    if isinstance(cell, LSTMCell):
        outputs, *after = torch.lstm(*data, hidden, weights, *options)  # type: ignore[call-overload]
        return outputs, tuple(after)
    function = {"tanh": torch.rnn_tanh, "relu": torch.rnn_relu}.get(
        getattr(cell, "nonlinearity", ""), torch.gru
    )
    outputs, after_1BH = function(*data, hidden[0], weights, *options)  # type: ignore[call-overload]
    return outputs, (after_1BH,)


def _packed_call(
    cell: Cell,
    packed: PackedSequence,
    hidden: list[Tensor],
    weights: list[Tensor],
    total_length: int,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    order, back = packed.sorted_indices, packed.unsorted_indices
    assert order is not None
    assert back is not None
    hidden = [tensor.index_select(1, order) for tensor in hidden]
    outputs, after = _call(cell, (packed.data, packed.batch_sizes), hidden, weights)
    padded = PackedSequence(outputs, packed.batch_sizes, order, back)
    outputs_TBP, _ = pad_packed_sequence(padded, total_length=total_length)
    return outputs_TBP, tuple(tensor.index_select(1, back) for tensor in after)


def _in_one_block(
    cell: Cell, recurrent_weight: Float[Tensor, "G P"], dtype: torch.dtype
) -> list[Tensor]:
    """The weights as `torch_weights` gives them, as views of one buffer in cuDNN's order.

    Scattered weights would be gathered by cuDNN at every call, with a warning.
    """
    projection = cell.projection_weight if isinstance(cell, LSTMCell) else None
    second_bias = cell.recurrent_bias if isinstance(cell, GRUCell) else None
    turned = cell.hidden_size if isinstance(cell, GRUCell) else 0
    given = (cell.input_weight, recurrent_weight, projection, cell.bias, second_bias)
    W, U, *R, bias, second = _Block.apply(dtype, turned, *given)  # type: ignore[no-untyped-call]
    return [W, U, bias, second, *R]


class _Block(torch.autograd.Function):
    """W, U, the projection (or None), the bias and the second one (or None, for zeros), copied.

    `turned` rows after as many others change their sign, in all but the second bias: the GRU's u.
    That bias is the last rows' alone.
    """

    @staticmethod
    def forward(
        ctx: Any, dtype: torch.dtype, turned: int, *given: Tensor | None
    ) -> tuple[Tensor, ...]:
        *firsts, bias, second = given
        assert bias is not None
        tensors = [tensor for tensor in (*firsts, bias) if tensor is not None]
        sizes = [tensor.numel() for tensor in (*tensors, bias)]
        *rooms, room = torch.split(bias.new_empty(sum(sizes), dtype=dtype), sizes)
        views = [piece.view_as(tensor) for piece, tensor in zip(rooms, tensors, strict=True)]
        torch._foreach_copy_(views, tensors)
        for view in views if turned else ():
            view[turned : 2 * turned].neg_()
        room.zero_()
        if second is not None:
            room[-len(second) :] = second
        ctx.turned = turned
        ctx.dtypes = [None if tensor is None else tensor.dtype for tensor in given]
        ctx.num_last = 0 if second is None else len(second)
        return (*views, room)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        *firsts, last = gradients
        for gradient in firsts if ctx.turned else ():
            gradient[ctx.turned : 2 * ctx.turned].neg_()  # in cuDNN's own buffer
        to_second = last[-ctx.num_last :] if ctx.num_last else None
        rest = iter([*firsts, to_second])
        found = [None if dtype is None else next(rest).to(dtype) for dtype in ctx.dtypes]  # type: ignore[union-attr]
        return (None, None, *found)
