"""A small LSTM in both directions on a CPU: one compiled loop forward and one backward.

A layer alone divides the rows of a batch over the threads (`cpu.py`), or is left to torch, which
divides each small product. Here each thread takes a direction (`cpu_direction_loops.py`), nothing
is turned round in memory, and the outputs come side by side. `planning.plan` decides; it needs
oneDNN's products, and matrices that stay in a core's cache.

T time steps, B batch, I inputs, H hidden units, P outputs of both directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from elman.nn.cells import Cell
from elman.nn.kernels import cpu_direction_loops as loops
from elman.nn.kernels.memory import room
from elman.nn.kernels.planning import KernelPlan
from elman.nn.shapes import Float, Int
from elman.nn.state import State


def run(
    cells: Sequence[Cell],
    inputs_BTI: Float[Tensor, "B T I"],
    states: Sequence[State],
    lengths_B: Int[Tensor, "B"] | None,
    recurrent_weights: Sequence[Tensor],
    plan: KernelPlan,
) -> tuple[Float[Tensor, "B T P"], list[State]]:
    """The outputs of both directions side by side, and the state in which each ended."""
    batch_size, num_steps, _ = inputs_BTI.shape
    if lengths_B is None:
        lengths_B = torch.full((batch_size,), num_steps)
    given = [
        tensor
        for cell, U, state in zip(cells, recurrent_weights, states, strict=True)
        for tensor in (cell.input_weight, U, cell.bias, state.tensor("h"), state.tensor("c"))
    ]
    x_TBI = inputs_BTI.transpose(0, 1)
    outputs_TBP, after = _LSTM.apply(plan, lengths_B, x_TBI, *given)  # type: ignore[no-untyped-call]
    h, c, left_h, left_c = after.unbind()
    return outputs_TBP.transpose(0, 1), [State({"h": h, "c": c}), State({"h": left_h, "c": left_c})]


class _LSTM(torch.autograd.Function):
    """`given` are W, U, bias, h and c of each direction; the final h and c come as one tensor."""

    @staticmethod
    def forward(
        ctx: Any, plan: KernelPlan, lengths: Tensor, x: Tensor, *given: Tensor
    ) -> tuple[Tensor, ...]:
        given = tuple(tensor.contiguous() for tensor in given)
        x, lengths = x.contiguous(), lengths.to("cpu", torch.int64).contiguous()
        (num_steps, batch_size, num_inputs), size = x.shape, given[1].shape[1]
        num_parts = plan.num_parts
        num_rows = -(-batch_size // (num_parts // 2))
        kept = room(num_parts, loops.kept_size(num_steps, num_rows, num_inputs, size))
        outputs = room(num_steps, batch_size, 2 * size)
        after = torch.empty(4, batch_size, size)
        loops.lstm_forward(
            num_rows=num_parts,
            num_parts=num_parts,
            lengths_B=lengths,
            x=x,
            given=_addresses(given),
            packed=room(num_parts, loops.packed_size(num_inputs, size)),
            kept=kept,
            after=after,
            outputs=outputs,
        )
        W, U, left_W, left_U = given[0], given[1], given[5], given[6]
        ctx.save_for_backward(lengths, kept, W, U, left_W, left_U)
        ctx.num_parts = num_parts
        return outputs, after

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        lengths, kept, *matrices = ctx.saved_tensors
        to_outputs, to_state = gradients[0].contiguous(), gradients[1].clone()
        num_steps, batch_size, _ = to_outputs.shape
        num_parts, (width, num_inputs), size = ctx.num_parts, matrices[0].shape, to_state.shape[2]
        groups = num_parts // 2
        num_rows = num_steps * -(-batch_size // groups) + 2 * loops.CHUNK
        to_x = room(2 * num_steps, batch_size, num_inputs)
        to_W, to_U = room(num_parts, width, num_inputs), room(num_parts, width, size)
        to_bias = torch.zeros(num_parts, width, dtype=torch.float64)
        loops.lstm_backward(
            num_rows=num_parts,
            num_parts=num_parts,
            lengths_B=lengths,
            matrices=_addresses(matrices),
            kept=kept,
            to_outputs=to_outputs,
            scratch=room(num_parts, num_rows * width),
            to_x=to_x,
            to_W=to_W,
            to_U=to_U,
            to_state=to_state,
            to_bias=to_bias,
        )
        sums = [to_W, to_U, to_bias]
        if groups > 1:
            sums = [total.view(2, groups, *total.shape[1:]).sum(1) for total in sums]
        sums[2] = sums[2].float()
        right, left = (
            (*(total[i] for total in sums), *to_state[2 * i : 2 * i + 2]) for i in (0, 1)
        )
        to_inputs = None
        if ctx.needs_input_grad[2]:
            to_inputs = to_x[:num_steps] + to_x[num_steps:]
        return None, None, to_inputs, *right, *left


def _addresses(tensors: Sequence[Tensor]) -> Tensor:
    return torch.tensor([tensor.data_ptr() for tensor in tensors])
