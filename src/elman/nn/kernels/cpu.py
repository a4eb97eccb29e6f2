"""LSTM and GRU on a CPU: the time loop compiled, the batch shared out over threads.

torch's own layers divide each small product of a step over all threads, which meet at every step.
Here each thread takes some rows of the batch through all time steps by itself (`cpu_loops.py`),
with the recurrent matrix packed once; the products over all steps at once, such as the gradients of
the matrices after the loop, are torch's. What one thread does never depends on the others, so
results do not depend on timing. The threads are torch's (`team.py`), and what is large is used
again from one training step to the next (`memory.py`).

It serves float32 where numba is installed and torch has brought MKL. Other numbers, autocast and
small LSTMs are left to the other kernels, without a word; second derivatives need
kernel=reference.

T time steps, B batch, I inputs, H hidden units, P outputs, G gates times H.
"""

from __future__ import annotations

from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from elman.nn.cells import Cell, GRUCell, LSTMCell
from elman.nn.kernels import cpu_gru_loops as gru_loops
from elman.nn.kernels import cpu_loops as loops
from elman.nn.kernels import mkl, reference, stream, torch_rnn
from elman.nn.kernels.memory import room
from elman.nn.kernels.team import PooledLoop
from elman.nn.shapes import Float, Int
from elman.nn.state import State

FEWEST_ROWS = 4
"""Rows of a batch that are worth a thread of their own."""

SMALLEST_WORK = 100_000_000
"""Multiplications of an LSTM's forward pass from which the loops are ahead of torch's layer, which
has a fused LSTM too (it has no fused GRU); four times as many where few steps share the cost of
packing the matrices."""

FEWEST_STEPS = 2048
"""Steps times rows that count as few."""

UNITS_APART = 16
"""Threads share out units in multiples of this: a line of the cache belongs to one of them."""

CHUNK_ROWS = 128
"""Steps times rows whose gradients of the gates are multiplied at once, where the matrices fit."""

CACHE_BYTES = 3 << 19
"""Matrices up to this size are multiplied step by step, while what they are multiplied with is at
hand; larger ones, which each step would fetch anew, by all steps at once."""


FEW_ROWS_PER_PART, LARGE_BYTES = 10, 1 << 24
"""Where a thread would have so few rows of the batch, or the recurrent matrix of an LSTM is so
large, reading it takes longer than multiplying: the threads share out the units instead, so that
each reads its part of the matrix, and meet at every step."""


def serves(cell: Cell, device: torch.device) -> bool:
    """LSTM without extras and GRU in both forms, float32, with numba and MKL at hand."""
    plain = (isinstance(cell, LSTMCell) and not cell.has_extras) or (
        isinstance(cell, GRUCell) and not cell.layer_norm
    )
    return plain and device.type == "cpu" and cell.bias.dtype == torch.float32 and mkl.available()


def run(
    cell: Cell,
    inputs_BTI: Float[Tensor, "B T I"],
    state: State,
    lengths_B: Int[Tensor, "B"] | None,
    recurrent_weight: Float[Tensor, "G P"],
) -> tuple[Float[Tensor, "B T P"], State]:
    """The whole sequence: one product, one compiled loop."""
    h_BH = state.tensor("h")
    other_numbers = {inputs_BTI.dtype, h_BH.dtype} != {torch.float32}
    if torch.is_autocast_enabled("cpu") or other_numbers or _is_small(cell, inputs_BTI):
        return _other(cell).run(cell, inputs_BTI, state, lengths_B, recurrent_weight)  # type: ignore[no-any-return]
    inputs_TBI = inputs_BTI.transpose(0, 1)
    weights = (cell.input_weight, recurrent_weight, cell.bias)
    if isinstance(cell, LSTMCell):
        outputs_TBH, *after = _LSTM.apply(  # type: ignore[no-untyped-call]
            inputs_TBI, *weights, h_BH, state.tensor("c"), lengths_B
        )
    else:
        assert isinstance(cell, GRUCell)
        kind = _GRUBefore if cell.recurrent_bias is None else _GRUAfter
        outputs_TBH, *after = kind.apply(  # type: ignore[no-untyped-call]
            inputs_TBI, *weights, cell.recurrent_bias, h_BH, lengths_B
        )
    if lengths_B is not None:
        time_T1 = torch.arange(len(outputs_TBH)).unsqueeze(1)
        outputs_TBH = torch.where((time_T1 < lengths_B).unsqueeze(2), outputs_TBH, 0)
    return outputs_TBH.transpose(0, 1), State(dict(zip(cell.state_sizes, after, strict=True)))


def step(
    cell: Cell, inputs_BI: Float[Tensor, "B I"], state: State
) -> tuple[Float[Tensor, "B P"], State]:
    """One step: compiled for a few streams, else as the torch kernel or the equations have it."""
    if stream.serves(cell, inputs_BI):
        return stream.step(cell, inputs_BI, state)
    result: tuple[Tensor, State] = _other(cell).step(cell, inputs_BI, state)
    return result


def _is_small(cell: Cell, inputs_BTI: Tensor) -> bool:
    """Whether torch's LSTM is as quick: little to do, or too few rows for the threads."""
    if not isinstance(cell, LSTMCell):
        return False
    batch_size, num_steps, num_inputs = inputs_BTI.shape
    work = batch_size * num_steps * 4 * cell.hidden_size * (cell.hidden_size + num_inputs)
    smallest = SMALLEST_WORK * (4 if batch_size * num_steps < FEWEST_STEPS else 1)
    return work < smallest or (batch_size < 4 * FEWEST_ROWS and torch.get_num_threads() > 1)


def _other(cell: Cell) -> ModuleType:
    return torch_rnn if torch_rnn.has(cell) else reference


class _LSTM(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        W: Tensor,
        U: Tensor,
        bias: Tensor,
        h_BH: Tensor,
        c_BH: Tensor,
        lengths_B: Tensor | None,
    ) -> tuple[Tensor, ...]:
        x, h, c = x.contiguous(), _states(h_BH, len(x)), _states(c_BH, len(x))
        gates = room(*x.shape[:2], len(W))
        lengths = _lengths(lengths_B, x)
        in_loop = _fit(W, U)
        if not in_loop:
            torch.mm(x.flatten(0, 1), W.t(), out=gates.flatten(0, 1))
        if not in_loop and _by_units(U, x.shape[1]):
            given = {"bias": bias.detach(), "gates": gates, "h": h, "c": c}
            _share_units(loops.lstm_forward_by_units, lengths, U, True, **given)
        else:
            _share(
                loops.lstm_forward,
                lengths,
                x=x if in_loop else x[..., :0].contiguous(),
                W=_Packed(W if in_loop else W[:, :0], True),
                U=_Packed(U, True),
                bias=bias.detach(),
                gates=gates,
                h=h,
                c=c,
            )
        ctx.save_for_backward(x, W, U, gates, h, c)
        ctx.lengths = lengths
        return h[1:], h[-1].clone(), c[-1].clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, W, U, gates, h, c = ctx.saved_tensors
        to_outputs, to_h, to_c = _flowing(gradients)
        num_steps, batch_size, num_inputs = x.shape
        num_parts, in_loop = _num_parts(batch_size), _fit(W, U)
        to_bias = torch.zeros(num_parts, len(W), dtype=torch.float64)
        num_rows = num_steps * batch_size
        num_entered = to_x_size = 0
        if in_loop:
            rows = -(-batch_size // num_parts)
            num_rows = max(1, min(num_steps, CHUNK_ROWS // rows)) * batch_size
            num_entered = num_inputs + h.shape[2]
            to_x_size = num_inputs if ctx.needs_input_grad[0] else 0
        d = room(num_rows, len(W))
        to_weights = room(num_parts, len(W), num_entered)
        to_x = room(num_steps, batch_size, to_x_size)
        if not in_loop and _by_units(U, batch_size):
            _share_units(
                loops.lstm_backward_by_units,
                ctx.lengths,
                U,
                False,
                gates=gates,
                c=c,
                to_outputs=to_outputs,
                to_gates=d.view(num_steps, batch_size, len(W)),
                to_h=to_h,
                to_c=to_c,
                to_bias=to_bias,
            )
        else:
            _share(
                loops.lstm_backward,
                ctx.lengths,
                W=_Packed(W if to_x_size else W[:, :0]),
                U=_Packed(U),
                gates=gates,
                x=x,
                h=h,
                c=c,
                to_outputs=to_outputs,
                to_gates=d,
                entered=room(num_rows if in_loop else 0, num_entered),
                to_weights=to_weights,
                to_h=to_h,
                to_c=to_c,
                to_bias=to_bias,
                to_x=to_x,
            )
        if in_loop:
            total = to_weights.sum(0)
            to_W, to_U = total[:, :num_inputs], total[:, num_inputs:]
        else:
            to_W, to_U = _product(d.t(), x.flatten(0, 1)), _product(d.t(), h[:-1].flatten(0, 1))
        return (
            (to_x if to_x_size else None) if in_loop else _to_inputs(ctx, d, W, x),
            to_W,
            to_U,
            to_bias.sum(0).float(),
            to_h,
            to_c,
            None,
        )


class _GRUAfter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        W: Tensor,
        U: Tensor,
        bias: Tensor,
        inner_bias: Tensor,
        h_BH: Tensor,
        lengths_B: Tensor | None,
    ) -> tuple[Tensor, ...]:
        gates, h = _projected(x, W, bias), _states(h_BH, len(x))
        inner, scratch = room(*h[1:].shape), torch.empty_like(gates[0])
        lengths = _lengths(lengths_B, x)
        _share(
            gru_loops.gru_after_forward,
            lengths,
            gates=gates,
            U=_Packed(U, True),
            inner_bias=inner_bias.detach(),
            h=h,
            inner=inner,
            scratch=scratch,
        )
        ctx.save_for_backward(x, W, U, gates, h, inner)
        ctx.lengths = lengths
        return h[1:], h[-1].clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, W, U, gates, h, inner = ctx.saved_tensors
        size = h.shape[2]
        to_outputs, to_h = _flowing(gradients)
        d = room(*gates.shape[:2], 4 * size)
        _share(
            gru_loops.gru_after_backward,
            ctx.lengths,
            gates=gates,
            U=_Packed(U),
            h=h,
            inner=inner,
            to_outputs=to_outputs,
            to_gates=d,
            to_h=to_h,
        )
        flat = d.flatten(0, 1)
        # Columns n, r, u, inner: W's rows are r, u, n, and U's r, u, inner.
        to_projected, to_recurrent = flat[:, : 3 * size], flat[:, size:]
        to_W = (to_projected.t() @ x.flatten(0, 1)).roll(-size, 0)
        return (
            _to_inputs(ctx, to_projected, W.roll(size, 0), x),
            to_W,
            to_recurrent.t() @ h[:-1].flatten(0, 1),
            to_projected.sum(0).roll(-size),
            flat[:, 3 * size :].sum(0),
            to_h,
            None,
        )


class _GRUBefore(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        W: Tensor,
        U: Tensor,
        bias: Tensor,
        inner_bias: None,
        h_BH: Tensor,
        lengths_B: Tensor | None,
    ) -> tuple[Tensor, ...]:
        gates, h = _projected(x, W, bias), _states(h_BH, len(x))
        reset = room(*h[1:].shape)
        split = 2 * h.shape[2]
        lengths = _lengths(lengths_B, x)
        _share(
            gru_loops.gru_before_forward,
            lengths,
            gates=gates,
            U_ru=_Packed(U[:split], True),
            U_n=_Packed(U[split:], True),
            h=h,
            reset=reset,
        )
        ctx.save_for_backward(x, W, U, gates, h, reset)
        ctx.lengths = lengths
        return h[1:], h[-1].clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, W, U, gates, h, reset = ctx.saved_tensors
        split = 2 * h.shape[2]
        to_outputs, to_h = _flowing(gradients)
        d = room(*gates.shape)
        _share(
            gru_loops.gru_before_backward,
            ctx.lengths,
            gates=gates,
            U_ru=_Packed(U[:split]),
            U_n=_Packed(U[split:]),
            h=h,
            to_outputs=to_outputs,
            to_gates=d,
            to_reset=torch.empty_like(to_h),
            to_h=to_h,
        )
        flat = d.flatten(0, 1)
        to_U = torch.empty_like(U)
        torch.mm(flat[:, :split].t(), h[:-1].flatten(0, 1), out=to_U[:split])
        torch.mm(flat[:, split:].t(), reset.flatten(0, 1), out=to_U[split:])
        return (
            _to_inputs(ctx, flat, W, x),
            flat.t() @ x.flatten(0, 1),
            to_U,
            flat.sum(0),
            None,
            to_h,
            None,
        )


class _Packed:
    """A matrix that each thread takes packed for its number of rows."""

    def __init__(self, matrix: Tensor, transposed: bool = False) -> None:
        self.matrix = matrix.detach() if matrix.stride(1) == 1 else matrix.detach().contiguous()
        self.transposed = transposed

    def order(self, num_rows: int) -> tuple[Tensor, list[tuple[int, ...]]]:
        """Where it will be, and an order for `loops.pack`; none where there is no matrix."""
        target = mkl.room_for(self.matrix, num_rows, transposed=self.transposed)
        if not self.matrix.numel():
            return target, []
        inner, outer = self.matrix.shape
        if self.transposed:
            inner, outer = outer, inner
        place = self.matrix.data_ptr(), self.matrix.stride(0), target.data_ptr()
        return target, [(*place, self.transposed, num_rows, outer, inner)]


def _share(loop: PooledLoop, lengths: Tensor, **arguments: Tensor | _Packed) -> None:
    """Run `loop` over all rows of a batch, on as many threads as they are worth."""
    batch_size, num_parts = len(lengths), _num_parts(len(lengths))
    smaller, larger = batch_size // num_parts, -(-batch_size // num_parts)
    orders: list[tuple[int, ...]] = []
    given: dict[str, object] = {}
    for name, argument in arguments.items():
        given[name] = argument
        if isinstance(argument, _Packed):
            targets = []
            for num_rows in sorted({smaller, larger}):
                target, order = argument.order(num_rows)
                orders += order
                targets.append(target)
            given[name] = targets[0], targets[-1]
    _pack(orders)
    loop(num_rows=batch_size, num_parts=num_parts, lengths_B=lengths, **given)


def _pack(orders: list[tuple[int, ...]]) -> None:
    field = loops.pack.fields["orders"]
    assert field is not None
    records = np.array(orders, field.dtype)
    loops.pack(num_rows=len(orders), num_parts=len(orders), orders=records)


def _by_units(U: Tensor, batch_size: int) -> bool:
    """Whether the threads of an LSTM share out its units rather than the rows of the batch."""
    few_rows = batch_size <= FEW_ROWS_PER_PART * _num_parts(batch_size)
    return torch.get_num_threads() > 1 and (few_rows or U.nbytes > LARGE_BYTES)


def _share_units(
    loop: PooledLoop, lengths: Tensor, U: Tensor, transposed: bool, **arguments: Tensor
) -> None:
    """Run `loop` over all units of an LSTM: each thread has its rows of U (transposed), or its
    columns, of each gate, packed."""
    size = U.shape[1]
    num_parts = min(torch.get_num_threads(), -(-size // UNITS_APART))
    edges = [
        min(size, -(-size * i // num_parts // UNITS_APART) * UNITS_APART) for i in range(num_parts)
    ]
    edges.append(size)
    packs = []
    for first, last in pairwise(edges):
        for start in range(0, len(U), size):
            gate = U[start : start + size]
            packs.append(
                _Packed(gate[first:last] if transposed else gate[:, first:last], transposed)
            )
    targets, lists = zip(*(pack.order(len(lengths)) for pack in packs), strict=True)
    _pack([order for orders in lists for order in orders])
    addresses = torch.tensor([target.data_ptr() for target in targets])
    loop(
        num_rows=num_parts,
        num_parts=num_parts,
        lengths_B=lengths,
        U=addresses,
        edges=torch.tensor(edges),
        **arguments,
    )


def _num_parts(batch_size: int) -> int:
    return max(1, min(torch.get_num_threads(), batch_size // FEWEST_ROWS))


def _fit(*matrices: Tensor) -> bool:
    """Whether these stay in a core's cache from one step to the next."""
    return sum(matrix.nbytes for matrix in matrices) <= CACHE_BYTES


def _projected(x: Tensor, W: Tensor, bias: Tensor) -> Tensor:
    """W x + b."""
    gates = room(*x.shape[:2], len(W))
    torch.addmm(bias, x.flatten(0, 1), W.t(), out=gates.flatten(0, 1))
    return gates


def _states(initial_BH: Tensor, num_steps: int) -> Tensor:
    """Room for the initial state and one per step."""
    states = room(num_steps + 1, *initial_BH.shape)
    states[0] = initial_BH
    return states


def _lengths(lengths_B: Tensor | None, x: Tensor) -> Tensor:
    if lengths_B is None:
        return torch.full((x.shape[1],), len(x))
    return lengths_B.to("cpu", torch.int64).contiguous()


def _flowing(gradients: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The outputs' gradients, and copies of the final states' for the loop to carry back."""
    to_outputs, *to_final = gradients
    return to_outputs.contiguous(), *(g.contiguous().clone() for g in to_final)


def _to_inputs(ctx: Any, flat: Tensor, W: Tensor, x: Tensor) -> Tensor | None:
    if not ctx.needs_input_grad[0]:
        return None
    return _product(flat, W).view(x.shape)


def _product(left: Tensor, right: Tensor) -> Tensor:
    out = room(len(left), right.shape[1])
    torch.mm(left, right, out=out)
    return out
