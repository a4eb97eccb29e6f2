"""LSTM and GRU on a CPU: compiled time loops, the batch divided over threads.

torch's own layers divide each small product of a step over all threads, which then wait for each
other at every step. Here each thread takes some rows of the batch through all time steps by itself
(`cpu_loops.py`), with the recurrent matrix packed once. Products over all steps at once, such as
the gradients of the matrices after the loop, are torch's. No thread depends on another's timing, so
results are reproducible. The threads are torch's (`team.py`), and large arrays are kept from one
training step to the next (`memory.py`).

It needs numba. MKL or oneDNN (`mkl.py`), whichever is faster here (`products.py`), multiplies in
float32; under autocast, oneDNN multiplies an LSTM's matrices in bfloat16. `planning.plan` decides
all this, and how the work is divided. Second derivatives need kernel=reference.

T time steps, B batch, I inputs, H hidden units, P outputs, G gates times H.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from elman.nn.cells import Cell, GRUCell, LSTMCell
from elman.nn.kernels import blocks, stream
from elman.nn.kernels import cpu_gru_loops as gru_loops
from elman.nn.kernels import cpu_half_loops as half_loops
from elman.nn.kernels import cpu_loops as loops
from elman.nn.kernels.memory import half_room, room
from elman.nn.kernels.packing import PackedFor, pack
from elman.nn.kernels.planning import COMPILED_STEP, UNITS_APART, KernelPlan
from elman.nn.kernels.products import BFLOAT16, ONEDNN
from elman.nn.kernels.team import PooledLoop
from elman.nn.shapes import Float, Int
from elman.nn.state import State

CHUNK_ROWS = 128
"""Steps times rows whose gradients of the gates are multiplied at once, where the matrices fit."""


def run(
    cell: Cell,
    inputs_BTI: Float[Tensor, "B T I"],
    state: State,
    lengths_B: Int[Tensor, "B"] | None,
    recurrent_weight: Float[Tensor, "G P"],
    plan: KernelPlan,
) -> tuple[Float[Tensor, "B T P"], State]:
    """The whole sequence in one compiled loop."""
    batch, h_BH = _Batch(plan, lengths_B, inputs_BTI), state.tensor("h")
    given = (batch, inputs_BTI.transpose(0, 1), cell.input_weight, recurrent_weight, cell.bias)
    if plan.products == BFLOAT16:
        found = _HalfLSTM.apply(*given, h_BH, state.tensor("c"))  # type: ignore[no-untyped-call]
    elif isinstance(cell, LSTMCell):
        found = _LSTM.apply(*given, h_BH, state.tensor("c"))  # type: ignore[no-untyped-call]
    elif isinstance(cell, GRUCell) and cell.recurrent_bias is not None:
        found = _GRUAfter.apply(*given, cell.recurrent_bias, h_BH)  # type: ignore[no-untyped-call]
    else:
        found = _GRUBefore.apply(*given, h_BH)  # type: ignore[no-untyped-call]
    outputs_TBH, *after = found
    if lengths_B is not None:
        time_T1 = torch.arange(len(outputs_TBH)).unsqueeze(1)
        outputs_TBH = torch.where((time_T1 < lengths_B).unsqueeze(2), outputs_TBH, 0)
    return outputs_TBH.transpose(0, 1), State(dict(zip(cell.state_sizes, after, strict=True)))


def step(
    cell: Cell, inputs_BI: Float[Tensor, "B I"], state: State, plan: KernelPlan
) -> tuple[Float[Tensor, "B P"], State]:
    """One step: compiled for decoding, or (with gradients) a sequence of one."""
    if plan.variant == COMPILED_STEP:
        return stream.step(cell, inputs_BI, state, plan)
    inputs_B1I = inputs_BI.unsqueeze(1)
    outputs_B1P, state = run(cell, inputs_B1I, state, None, cell.recurrent_weight, plan)
    return outputs_B1P.squeeze(1), state


class _LSTM(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, batch: _Batch, x: Tensor, W: Tensor, U: Tensor, bias: Tensor, *initial: Tensor
    ) -> tuple[Tensor, ...]:
        plan, x = batch.plan, x.contiguous()
        num_steps, batch_size, _ = x.shape
        h, c = _states(initial[0], num_steps), _states(initial[1], batch.kept(num_steps, 1))
        in_loop = plan.in_cache or plan.products == ONEDNN
        gates = room(
            batch.kept(num_steps, loops.STEPS_AHEAD if in_loop else num_steps), batch_size, len(W)
        )
        if not in_loop:
            torch.mm(x.flatten(0, 1), W.t(), out=gates.flatten(0, 1))
        read = x if in_loop else room(num_steps, batch_size, 0)
        arrays = {"bias": bias.detach(), "x": read, "gates": gates, "h": h, "c": c}
        read_W = W if in_loop else W[:, :0]
        if plan.by_units:
            batch.run_by_units(loops.lstm_forward_by_units, True, {"W": read_W, "U": U}, **arrays)
        else:
            packed = {"W": PackedFor(read_W, True), "U": PackedFor(U, True)}
            batch.run(loops.lstm_forward, **packed, **arrays)
        if batch.trains:
            ctx.save_for_backward(x, W, U, gates, h, c)
            ctx.batch = batch
        return h[1:], h[-1].clone(), c[num_steps % len(c)].clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, W, U, gates, h, c = ctx.saved_tensors
        batch: _Batch = ctx.batch
        plan = batch.plan
        to_outputs, to_h, to_c = _flowing(gradients)
        num_steps, batch_size, num_inputs = x.shape
        num_parts = 1 if plan.by_units else plan.num_parts
        to_bias = torch.zeros(num_parts, len(W), dtype=torch.float64)
        num_rows = num_steps * batch_size
        num_entered = to_x_size = 0
        if plan.in_cache:
            rows = -(-batch_size // num_parts)
            num_rows = max(1, min(num_steps, CHUNK_ROWS // rows)) * batch_size
            num_entered = num_inputs + h.shape[2]
            to_x_size = num_inputs if ctx.needs_input_grad[1] else 0
        d = room(num_rows, len(W))
        to_weights = room(num_parts, len(W), num_entered)
        to_x = room(num_steps, batch_size, to_x_size)
        arrays = {"gates": gates, "c": c, "to_outputs": to_outputs}
        arrays |= {"to_h": to_h, "to_c": to_c, "to_bias": to_bias}
        if plan.by_units:
            by_step = d.view(num_steps, batch_size, len(W))
            matrices = {"U": U}
            batch.run_by_units(
                loops.lstm_backward_by_units, False, matrices, to_gates=by_step, **arrays
            )
        else:
            batch.run(
                loops.lstm_backward,
                W=PackedFor(W if to_x_size else W[:, :0]),
                U=PackedFor(U),
                x=x,
                h=h,
                to_gates=d,
                entered=room(num_rows if plan.in_cache else 0, num_entered),
                to_weights=to_weights,
                to_x=to_x,
                **arrays,
            )
        if plan.in_cache:
            total = to_weights.sum(0)
            to_W, to_U = total[:, :num_inputs], total[:, num_inputs:]
            to_inputs = to_x if to_x_size else None
        else:
            to_W, to_U = product_of(d.t(), x.flatten(0, 1)), product_of(d.t(), h[:-1].flatten(0, 1))
            to_inputs = _to_inputs(ctx, d, W, x)
        return None, to_inputs, to_W, to_U, to_bias.sum(0).float(), to_h, to_c


class _HalfLSTM(torch.autograd.Function):
    """Products in bfloat16; sums, gates and cell states in float32."""

    @staticmethod
    def forward(
        ctx: Any, batch: _Batch, x: Tensor, W: Tensor, U: Tensor, bias: Tensor, *initial: Tensor
    ) -> tuple[Tensor, ...]:
        (num_steps, batch_size, num_inputs), size = x.shape, U.shape[1]
        if x.dtype == torch.bfloat16 and num_inputs % 2 == 0:
            half_x = x.contiguous()
        else:
            half_x = halves_of(num_steps, batch_size, num_inputs)
            half_x[..., :num_inputs] = x
        h, c = (_states(state_BH, batch.kept(num_steps, 1)) for state_BH in initial)
        half_h = halves_of(num_steps + 1, batch_size, size)
        half_h[0, :, :size] = initial[0]
        gates = room(batch.kept(num_steps, loops.STEPS_AHEAD), batch_size, len(W))
        num_threads, read, read_W = batch.plan.num_threads, half_x, W
        if batch.trains:
            W_panels = blocks.Panels([W], transposed=True, num_threads=num_threads)
            blocks.product(half_x.flatten(0, 1), W_panels, gates.flatten(0, 1), num_threads)
            read, read_W = half_x.new_empty(num_steps, batch_size, 0), W[:, :0]
        batch.run_inhalves_of(
            half_loops.lstm_forward,
            True,
            {"W": read_W, "U": U},
            bias=bias.detach(),
            x=read,
            gates=gates,
            h=h,
            halves=half_h,
            c=c,
        )
        last = num_steps % len(c)
        if not batch.trains:  # what reads it multiplies in bfloat16, as after torch's layer
            return half_h[1:, :, :size], h[last].clone(), c[last].clone()
        ctx.save_for_backward(half_x, W, U, gates, half_h, c)
        ctx.batch, ctx.dtype = batch, x.dtype
        return h[1:], h[last].clone(), c[last].clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        half_x, W, U, gates, half_h, c = ctx.saved_tensors
        batch: _Batch = ctx.batch
        to_outputs, to_h, to_c = _flowing(gradients)
        num_parts, (num_inputs, size) = batch.plan.num_parts, (W.shape[1], U.shape[1])
        to_bias = torch.zeros(num_parts, len(W), dtype=torch.float64)
        d = half_room(*gates.shape)
        batch.run_inhalves_of(
            half_loops.lstm_backward,
            False,
            {"U": U},
            gates=gates,
            c=c,
            to_outputs=to_outputs,
            to_gates=d,
            scratch=torch.empty(num_parts, len(W)),
            to_h=to_h,
            to_c=to_c,
            to_bias=to_bias,
        )
        flat, to_x = d.flatten(0, 1), None
        if ctx.needs_input_grad[1]:
            to_x = room(*d.shape[:2], num_inputs)
            num_threads = batch.plan.num_threads
            W_panels = blocks.Panels([W], transposed=False, num_threads=num_threads)
            blocks.product(flat, W_panels, to_x.flatten(0, 1), num_threads)
            to_x = to_x.to(ctx.dtype)
        # Sums over all steps are float32 in oneDNN and rounded once.
        to_W = torch.mm(flat.t(), half_x.flatten(0, 1))[:, :num_inputs].float()
        to_U = torch.mm(flat.t(), half_h[:-1].flatten(0, 1))[:, :size].float()
        return None, to_x, to_W, to_U, to_bias.sum(0).float(), to_h, to_c


class _GRUAfter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, batch: _Batch, x: Tensor, W: Tensor, U: Tensor, bias: Tensor, *given: Tensor
    ) -> tuple[Tensor, ...]:
        inner_bias, h_BH = given
        gates, h = _projected(x, W, bias), _states(h_BH, len(x))
        inner = room(*h[1:].shape)
        batch.run(
            gru_loops.gru_after_forward,
            gates=gates,
            U=PackedFor(U, True),
            inner_bias=inner_bias.detach(),
            h=h,
            inner=inner,
            scratch=torch.empty_like(gates[0]),
        )
        ctx.save_for_backward(x, W, U, gates, h, inner)
        ctx.batch = batch
        return h[1:], h[-1].clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, W, U, gates, h, inner = ctx.saved_tensors
        size = h.shape[2]
        to_outputs, to_h = _flowing(gradients)
        d = room(*gates.shape[:2], 4 * size)
        ctx.batch.run(
            gru_loops.gru_after_backward,
            gates=gates,
            U=PackedFor(U),
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
        to_U = to_recurrent.t() @ h[:-1].flatten(0, 1)
        to_bias, to_inner_bias = to_projected.sum(0).roll(-size), flat[:, 3 * size :].sum(0)
        to_x = _to_inputs(ctx, to_projected, W.roll(size, 0), x)
        return None, to_x, to_W, to_U, to_bias, to_inner_bias, to_h


class _GRUBefore(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, batch: _Batch, x: Tensor, W: Tensor, U: Tensor, bias: Tensor, h_BH: Tensor
    ) -> tuple[Tensor, ...]:
        gates, h = _projected(x, W, bias), _states(h_BH, len(x))
        reset = room(*h[1:].shape)
        split = 2 * h.shape[2]
        batch.run(
            gru_loops.gru_before_forward,
            gates=gates,
            U_ru=PackedFor(U[:split], True),
            U_n=PackedFor(U[split:], True),
            h=h,
            reset=reset,
        )
        ctx.save_for_backward(x, W, U, gates, h, reset)
        ctx.batch = batch
        return h[1:], h[-1].clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, W, U, gates, h, reset = ctx.saved_tensors
        split = 2 * h.shape[2]
        to_outputs, to_h = _flowing(gradients)
        d = room(*gates.shape)
        ctx.batch.run(
            gru_loops.gru_before_backward,
            gates=gates,
            U_ru=PackedFor(U[:split]),
            U_n=PackedFor(U[split:]),
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
        to_x, to_W = _to_inputs(ctx, flat, W, x), flat.t() @ x.flatten(0, 1)
        return None, to_x, to_W, to_U, flat.sum(0), to_h


class _Batch:
    """The rows of a batch, and how loops over them are divided."""

    def __init__(self, plan: KernelPlan, lengths_B: Tensor | None, inputs_BTI: Tensor) -> None:
        self.plan = plan
        self.trains = torch.is_grad_enabled()
        self.size, num_steps, _ = inputs_BTI.shape
        if lengths_B is None:
            self.lengths = torch.full((self.size,), num_steps)
        else:
            self.lengths = lengths_B.to("cpu", torch.int64).contiguous()

    def kept(self, num_steps: int, needed: int) -> int:
        """Steps of an array that only gradients read from beginning to end."""
        return num_steps if self.trains else max(1, min(num_steps, needed))

    def run(self, loop: PooledLoop, **arguments: Tensor | PackedFor) -> None:
        """Run `loop`, each part with some rows of the batch."""
        num_parts = self.plan.num_parts
        sizes = sorted({self.size // num_parts, -(-self.size // num_parts)})
        given: dict[str, Any] = dict(arguments)
        packs = {name: a for name, a in arguments.items() if isinstance(a, PackedFor)}
        wanted = [(pack, rows) for pack in packs.values() for rows in sizes]
        targets = pack(wanted, self.plan.products, self.plan.num_parts)
        for i, name in enumerate(packs):
            given[name] = targets[i * len(sizes)], targets[(i + 1) * len(sizes) - 1]
        self._call(loop, self.size, **given)

    def run_by_units(
        self, loop: PooledLoop, transposed: bool, matrices: dict[str, Tensor], **arguments: Tensor
    ) -> None:
        """Run `loop`, each part with some units of the LSTM: its rows of each gate of the matrices
        (if `transposed`) or its columns, packed."""
        size, num_parts = matrices["U"].shape[1], self.plan.num_parts
        edges = _edges(size, num_parts, UNITS_APART)
        packs = []
        for matrix in matrices.values():
            for first, last in pairwise(edges):
                for gate in torch.split(matrix, size):
                    part = gate[first:last] if transposed else gate[:, first:last]
                    packs.append((PackedFor(part, transposed), self.size))
        targets = pack(packs, self.plan.products, num_parts)
        addresses = torch.tensor([target.data_ptr() for target in targets]).view(len(matrices), -1)
        given = dict(zip(matrices, addresses, strict=True))
        self._call(loop, num_parts, edges=torch.tensor(edges), **given, **arguments)

    def run_inhalves_of(
        self, loop: PooledLoop, transposed: bool, matrices: dict[str, Tensor], **arguments: Tensor
    ) -> None:
        """Run a loop of `cpu_half_loops.py`, each part with some rows, some units, or both."""
        plan, size = self.plan, matrices["U"].shape[1]
        rows = _edges(self.size, plan.row_groups, 1)
        units = _edges(size, plan.num_parts // plan.row_groups, UNITS_APART)
        edges = [(*r, *u) for r in pairwise(rows) for u in pairwise(units)]
        packs = [
            part
            for matrix in matrices.values()
            for first, last in pairwise(units)
            for part in (
                [gate[first:last] for gate in torch.split(matrix, size)]
                if transposed
                else [matrix[:, first:last]]
            )
        ]
        panels = blocks.Panels(packs, transposed=transposed, num_threads=plan.num_threads)
        addresses = torch.tensor(panels.addresses).view(len(matrices), -1).repeat(1, len(rows) - 1)
        self._call(
            loop,
            plan.num_parts,
            edges=torch.tensor(edges),
            meets=int(plan.by_units),
            **dict(zip(matrices, addresses, strict=True)),
            **arguments,
        )

    def _call(self, loop: PooledLoop, num_rows: int, **arguments: Any) -> None:
        num_parts = self.plan.num_parts
        loop(num_rows=num_rows, num_parts=num_parts, lengths_B=self.lengths, **arguments)


def _edges(size: int, num_parts: int, apart: int) -> list[int]:
    """Where parts of about equal size begin, at multiples of `apart`, and the end."""
    return [min(size, -(-size * i // num_parts // apart) * apart) for i in range(num_parts)] + [
        size
    ]


def halves_of(*shape: int) -> Tensor:
    """Memory for rows in bfloat16, padded by zeros to an even length."""
    *outer, size = shape
    halves = half_room(*outer, blocks.even(size))
    halves[..., size:] = 0
    return halves


def _projected(x: Tensor, W: Tensor, bias: Tensor) -> Tensor:
    """W x + b."""
    gates = room(*x.shape[:2], len(W))
    torch.addmm(bias, x.flatten(0, 1), W.t(), out=gates.flatten(0, 1))
    return gates


def _states(initial_BH: Tensor, num_steps: int) -> Tensor:
    """Memory for the initial state, which is filled in, and one state per step."""
    states = room(num_steps + 1, *initial_BH.shape)
    states[0] = initial_BH
    return states


def _flowing(gradients: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The outputs' gradients, and copies of the final states' for the loop to carry back."""
    to_outputs, *to_final = gradients
    return to_outputs.contiguous(), *(g.contiguous().clone() for g in to_final)


def _to_inputs(ctx: Any, flat: Tensor, W: Tensor, x: Tensor) -> Tensor | None:
    return product_of(flat, W).view(x.shape) if ctx.needs_input_grad[1] else None


def product_of(left: Tensor, right: Tensor) -> Tensor:
    out = room(len(left), right.shape[1])
    torch.mm(left, right, out=out)
    return out
