"""LSTM and GRU on a CPU: the time loop compiled, the batch shared out over threads.

torch's own layers divide each small product of a step over all threads, which meet at every step.
Here each thread takes some rows of the batch through all time steps by itself (`cpu_loops.py`),
with the recurrent matrix packed once; the products over all steps at once, W x before the loop and
the gradients of the matrices after it, are torch's. What one thread does never depends on the
others, so results do not depend on timing.

It serves float32 where numba is installed and torch has brought MKL. Other numbers, autocast and
second derivatives are left to the other kernels, without a word.

T time steps, B batch, I inputs, H hidden units, P outputs, G gates times H.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from elman.nn.cells import Cell, GRUCell, LSTMCell
from elman.nn.kernels import cpu_loops as loops
from elman.nn.kernels import mkl, reference, stream, torch_rnn
from elman.nn.shapes import Float, Int
from elman.nn.state import State

FEWEST_ROWS = 8
"""Rows of a batch that are worth a thread of their own."""


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
    if torch.is_autocast_enabled("cpu") or {inputs_BTI.dtype, h_BH.dtype} != {torch.float32}:
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
        gates, h = F.linear(x, W, bias), _states(h_BH, len(x))
        c = _states(c_BH, len(x))
        lengths = _lengths(lengths_B, x)
        _share(loops.lstm_forward, len(h_BH), gates, _Packed(U, True), h, c, lengths)
        ctx.save_for_backward(x, W, U, gates, h, c)
        ctx.lengths = lengths
        return h[1:], h[-1].clone(), c[-1].clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, W, U, gates, h, c = ctx.saved_tensors
        to_outputs, to_h, to_c = _flowing(gradients)
        d = torch.empty_like(gates)
        _share(
            loops.lstm_backward,
            gates.shape[1],
            gates,
            _Packed(U),
            c,
            to_outputs,
            ctx.lengths,
            d,
            to_h,
            to_c,
        )
        flat = d.flatten(0, 1)
        return (
            _to_inputs(ctx, flat, W, x),
            flat.t() @ x.flatten(0, 1),
            flat.t() @ h[:-1].flatten(0, 1),
            flat.sum(0),
            to_h[0],
            to_c[0],
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
        gates, h = F.linear(x, W, bias), _states(h_BH, len(x))
        inner, scratch = torch.empty_like(h[1:]), torch.empty_like(gates[:1])
        lengths = _lengths(lengths_B, x)
        _share(
            loops.gru_after_forward,
            len(h_BH),
            gates,
            _Packed(U, True),
            inner_bias.detach(),
            h,
            inner,
            scratch,
            lengths,
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
        d = gates.new_empty(*gates.shape[:2], 4 * size)
        _share(
            loops.gru_after_backward,
            gates.shape[1],
            gates,
            _Packed(U),
            h,
            inner,
            to_outputs,
            ctx.lengths,
            d,
            to_h,
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
            to_h[0],
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
        gates, h = F.linear(x, W, bias), _states(h_BH, len(x))
        reset = torch.empty_like(h[1:])
        split = 2 * h.shape[2]
        lengths = _lengths(lengths_B, x)
        _share(
            loops.gru_before_forward,
            len(h_BH),
            gates,
            _Packed(U[:split], True),
            _Packed(U[split:], True),
            h,
            reset,
            lengths,
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
        d = torch.empty_like(gates)
        _share(
            loops.gru_before_backward,
            gates.shape[1],
            gates,
            _Packed(U[:split]),
            _Packed(U[split:]),
            h,
            to_outputs,
            ctx.lengths,
            d,
            torch.empty_like(to_h),
            to_h,
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
            to_h[0],
            None,
        )


class _Packed:
    """A matrix that each thread takes packed for its number of rows."""

    def __init__(self, matrix: Tensor, transposed: bool = False) -> None:
        self.matrix = matrix.detach() if matrix.stride(1) == 1 else matrix.detach().contiguous()
        self.transposed = transposed

    def for_rows(self, num_rows: int) -> Any:
        return mkl.packed(self.matrix, num_rows, transposed=self.transposed)


def _share(loop: Callable[..., None], batch_size: int, *arguments: Any) -> None:
    """Run `loop` over all rows of a batch, in as many threads as they are worth."""
    num_parts = max(1, min(torch.get_num_threads(), batch_size // FEWEST_ROWS))
    edges = [batch_size * part // num_parts for part in range(num_parts + 1)]
    parts = list(pairwise(edges))
    given: dict[int, list[Any]] = {}
    for first, last in parts:
        if last - first not in given:
            given[last - first] = [
                a.for_rows(last - first)
                if isinstance(a, _Packed)
                else a.numpy()
                if isinstance(a, Tensor)
                else a
                for a in arguments
            ]
    waiting = [
        _pool(os.getpid()).submit(loop, *given[last - first], first, last)
        for first, last in parts[1:]
    ]
    first, last = parts[0]
    loop(*given[last - first], first, last)
    for future in waiting:
        future.result()


@lru_cache(None)
def _pool(process: int) -> ThreadPoolExecutor:
    """The threads besides the calling one; a forked process needs its own."""
    return ThreadPoolExecutor(max(1, torch.get_num_threads()), thread_name_prefix="elman-cpu")


def _states(initial_BH: Tensor, num_steps: int) -> Tensor:
    """Room for the initial state and one per step."""
    states = initial_BH.new_empty(num_steps + 1, *initial_BH.shape)
    states[0] = initial_BH
    return states


def _lengths(lengths_B: Tensor | None, x: Tensor) -> Any:
    if lengths_B is None:
        return np.full(x.shape[1], len(x), np.int64)
    return lengths_B.cpu().numpy().astype(np.int64)


def _flowing(gradients: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The outputs' gradients, and copies of the final states' for the loop to carry back."""
    to_outputs, *to_final = gradients
    return to_outputs.contiguous(), *(g.contiguous().clone().unsqueeze(0) for g in to_final)


def _to_inputs(ctx: Any, flat: Tensor, W: Tensor, x: Tensor) -> Tensor | None:
    return (flat @ W).view(x.shape) if ctx.needs_input_grad[0] else None
