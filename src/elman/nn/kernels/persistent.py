"""LSTM, GRU and RNN on CUDA in one launch per sequence, the recurrent matrix held on the chip.

cuDNN and torch launch several kernels per time step and read the recurrent matrix again at each.
Here one Triton kernel (`persistent_loops.py`) makes all steps; the products over all steps at once,
W x before it and the gradients of the matrices after it, are torch's. It serves bfloat16, float16
and float32; sums and the LSTM's cells, or the GRU's state, are in float32.

The programs of a launch read from each other, so all of them must run at the same time. There are
never more of them than multiprocessors, and the launch is cooperative: the driver starts it when
all fit, or refuses it. `planning.plan` does not choose this kernel where the matrix does not fit.

Sizes are padded inside: units to 2^a or 2^a + 2^b, with weights of zero, which leaves states at
zero. A projected LSTM (h = R (o * tanh(c))) recurs by the matrix U R, of plain shape, so that
it needs no loop of its own.

D directions (1, or 2 side by side), T time steps, B batch, I inputs, H hidden units, P outputs,
G gates times H.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from elman.nn.cells import Cell, GRUCell, LSTMCell, RNNCell
from elman.nn.kernels.persistent_launch import Launch, Shape, index_of, launch_for
from elman.nn.kernels.persistent_tiling import padded_size
from elman.nn.kernels.planning import KernelPlan
from elman.nn.shapes import Float, Int
from elman.nn.state import State


def run(
    cell: Cell,
    inputs_BTI: Float[Tensor, "B T I"],
    state: State,
    lengths_B: Int[Tensor, "B"] | None,
    recurrent_weight: Float[Tensor, "G P"],
    plan: KernelPlan,
) -> tuple[Float[Tensor, "B T P"], State]:
    """The whole sequence: one product, one launch."""
    return run_directions([cell], [inputs_BTI], [state], lengths_B, [recurrent_weight], plan)[0]


def run_directions(
    cells: list[Cell],
    inputs: list[Float[Tensor, "B T I"]],
    states: list[State],
    lengths_B: Int[Tensor, "B"] | None,
    recurrent_weights: list[Float[Tensor, "G P"]],
    plan: KernelPlan,
) -> list[tuple[Float[Tensor, "B T P"], State]]:
    """As many layers of the same shape as the plan has directions, each over its own inputs."""
    assert plan.tiling is not None
    assert plan.directions == len(cells)
    device = inputs[0].device
    is_autocast = torch.is_autocast_enabled(device.type)
    dtype = torch.get_autocast_dtype(device.type) if is_autocast else inputs[0].dtype
    kind, num_gates = _kind(cells[0])
    shape = Shape(
        kind=kind,
        num_gates=num_gates,
        dtype=dtype,
        size=padded_size(cells[0].hidden_size),
        batch_size=len(inputs[0]),
        directions=len(cells),
        is_ragged=lengths_B is not None,
        device=index_of(device),
    )
    launch = launch_for(shape, plan.tiling)
    with torch.autocast(device.type, enabled=False) if is_autocast else nullcontext():
        given: list[Tensor | None] = []
        for cell, x_BTI, state, U in zip(cells, inputs, states, recurrent_weights, strict=True):
            h_BP, first_BG = state.tensor("h"), None
            if (R := _projection(cell)) is not None:
                # What recurs is R h. The initial state has been through R already: its part in the
                # first step's gates is added separately.
                first_BG = F.linear(h_BP.to(dtype), U.to(dtype))
                U = U.to(dtype) @ R.to(dtype)
                h_BP = h_BP.new_zeros(len(h_BP), cell.hidden_size)
            c_BH = state.tensor("c") if isinstance(cell, LSTMCell) else None
            inner_bias = cell.recurrent_bias if isinstance(cell, GRUCell) else None
            given += [x_BTI, cell.input_weight, cell.bias, first_BG, U, inner_bias, h_BP, c_BH]
        if lengths_B is not None:
            # A copy: the loops read contiguous lengths, in the backward pass too.
            lengths_B = lengths_B.to(inputs[0].device, torch.int32, copy=True).contiguous()
        call = _Call(launch, dtype, cells[0].hidden_size, lengths_B)
        found = iter(_Recurrence.apply(call, *given))  # type: ignore[no-untyped-call]
        results = []
        for cell in cells:
            outputs_BTP = next(found)
            after = {key: next(found) for key in cell.state_sizes}
            if lengths_B is not None:
                time_T = torch.arange(outputs_BTP.shape[1], device=outputs_BTP.device)
                outputs_BTP = torch.where((time_T < lengths_B[:, None])[:, :, None], outputs_BTP, 0)
            if (R := _projection(cell)) is not None:
                R = R.to(dtype)
                outputs_BTP = F.linear(outputs_BTP, R)
                after["h"] = F.linear(after["h"].to(dtype), R).to(after["h"].dtype)
            results.append((outputs_BTP, State(after)))
        return results


def step(
    cell: Cell, inputs_BI: Float[Tensor, "B I"], state: State, plan: KernelPlan
) -> tuple[Float[Tensor, "B P"], State]:
    """A sequence of one step; chosen only by name."""
    inputs_B1I = inputs_BI.unsqueeze(1)
    outputs_B1P, state = run(cell, inputs_B1I, state, None, cell.recurrent_weight, plan)
    return outputs_B1P.squeeze(1), state


def _projection(cell: Cell) -> Tensor | None:
    return cell.projection_weight if isinstance(cell, LSTMCell) else None


def _kind(cell: Cell) -> tuple[int, int]:
    """The cell's number in the loops, and how many matrices are stacked in its W."""
    from elman.nn.kernels import persistent_loops as loops

    if isinstance(cell, LSTMCell):
        return loops.LSTM, 4
    if isinstance(cell, GRUCell):
        return (loops.GRU if cell.form == "reset_after" else loops.GRU_BEFORE), 3
    assert isinstance(cell, RNNCell)
    return {"tanh": loops.TANH, "relu": loops.RELU, "sigmoid": loops.SIGMOID}[cell.nonlinearity], 1


@dataclass(frozen=True)
class _Call:
    """What a call computes. One direction's tensors stand for themselves, several are stacked."""

    launch: Launch
    dtype: torch.dtype
    hidden_size: int
    lengths_B: Tensor | None

    @property
    def size(self) -> int:
        """Hidden units with padding."""
        return self.launch.size

    @property
    def extra(self) -> int:
        """Units of padding."""
        return self.size - self.hidden_size

    def steps(self, tensors: list[Tensor]) -> Tensor:
        """Rows of all steps, (D,) T times B, from tensors (B, T, I)."""
        return _stacked([self._rows(tensor.transpose(0, 1)) for tensor in tensors])

    def _rows(self, tensor_TBI: Tensor) -> Tensor:
        *steps, width = tensor_TBI.shape
        if tensor_TBI.dtype != self.dtype or width != aligned(width):
            tensor_TBI = _in_corner(tensor_TBI, (*steps, aligned(width)), self.dtype)
        return tensor_TBI.reshape(-1, aligned(width))

    def gates(self, tensors: list[Tensor], columns: int = 0) -> Tensor:
        """Stacked gates, with rows of zeros after each gate's own, and `columns` of zeros."""
        return _stacked([self._padded(tensor, columns) for tensor in tensors])

    def _padded(self, matrix: Tensor, columns: int) -> Tensor:
        if not self.extra and not columns:
            return matrix.to(self.dtype).contiguous()
        by_gate = matrix.reshape(-1, self.hidden_size, *matrix.shape[1:])
        shape = (len(by_gate), self.size, *(width + columns for width in matrix.shape[1:]))
        return _in_corner(by_gate, shape, self.dtype).flatten(0, 1)

    def without_padding(
        self, matrix: Tensor, dtype: torch.dtype, columns: int | None = None
    ) -> Tensor:
        """Undo `gates` for one direction, cast in the same copy."""
        if columns is not None:
            matrix = matrix[..., :columns]
        if not self.extra:
            return matrix.to(dtype)
        by_gate = matrix.reshape(-1, self.size, *matrix.shape[1:])[:, : self.hidden_size]
        return by_gate.to(dtype).flatten(0, 1)

    def put(self, room_BH: Tensor, state_BH: Tensor) -> None:
        """Write a state where there is room for a padded one."""
        self.cut(room_BH).copy_(state_BH)
        if self.extra:
            room_BH[:, self.hidden_size :].zero_()

    def cut(self, padded: Tensor) -> Tensor:
        """Without the padding's units."""
        return padded[..., : self.hidden_size] if self.extra else padded


def _in_corner(tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """The tensor with zeros after it along each axis, cast and turned in the same copy."""
    room = tensor.new_empty(shape, dtype=dtype)
    corner = room
    for axis, (size, full_size) in enumerate(zip(tensor.shape, shape, strict=True)):
        if full_size > size:
            corner.narrow(axis, size, full_size - size).zero_()
            corner = corner.narrow(axis, 0, size)
    corner.copy_(tensor)
    return room


def aligned(width: int) -> int:
    """The next multiple of 8: products of rows that begin at odd addresses take twice the time."""
    return -(-width // 8) * 8


def _stacked(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.stack(tensors)


def _apart(tensor: Any, directions: int) -> tuple[Any, ...]:
    """Undo `_stacked`; None stays None."""
    return (tensor,) * directions if directions == 1 or tensor is None else tensor.unbind()


class _Recurrence(torch.autograd.Function):
    """From inputs and states to the states that follow, for all directions.

    One function from the inputs as they come to the outputs as they are wanted: each small step
    of autograd around it would cost more than its work, and so would each needless operation
    within it. For each direction it takes the inputs, W, the bias, what is added to the first
    step's gates (or None), U, the inner bias (or None), h and c (or None), and returns outputs,
    h and c.
    """

    @staticmethod
    def forward(ctx: Any, call: _Call, *given: Any) -> tuple[Tensor, ...]:
        x, W, bias, first, U, inner_bias, h_0, c_0 = ([*given[k::8]] for k in range(8))
        batch_size, num_steps, width = x[0].shape
        directions, size = len(x), call.size
        rows, W_GI = call.steps(x), call.gates(W, aligned(width) - width)
        U_GH = call.gates(U, call.extra)
        if directions == 1:
            gates = torch.addmm(call.gates(bias), rows, W_GI.t())
        else:
            gates = torch.baddbmm(call.gates(bias).unsqueeze(1), rows, W_GI.transpose(1, 2))
        if first[0] is not None:
            to_first = gates.view(directions, num_steps, batch_size, -1)[:, 0]
            to_first += torch.stack([call.gates([t.t()]).t() for t in first])
        lead = () if directions == 1 else (directions,)
        h = gates.new_empty((*lead, num_steps + 1, batch_size, size))
        shown = _apart(h, directions)
        for h_TBH, h_BH in zip(shown, h_0, strict=True):
            call.put(h_TBH[0], h_BH)
        state = inner = inner_bias_H = None
        after = [[h_TBH[-1]] for h_TBH in shown]
        if c_0[0] is not None:
            state = gates.new_empty(h.shape, dtype=torch.float32)
            for c_TBH, c_BH, last in zip(_apart(state, directions), c_0, after, strict=True):
                call.put(c_TBH[0], c_BH)
                last.append(c_TBH[-1])
        elif gates.shape[-1] == 3 * size:
            state = gates.new_empty((*lead, batch_size, size), dtype=torch.float32)
            after = [[state_BH] for state_BH in _apart(state, directions)]
            for (state_BH,), h_BH in zip(after, h_0, strict=True):
                call.put(state_BH, h_BH)
            inner = gates.new_empty((*lead, num_steps * batch_size, size))
        if inner_bias[0] is not None:
            inner_bias_H = call.gates(inner_bias)
        call.launch.forward(num_steps, gates, U_GH, inner_bias_H, h, state, inner, call.lengths_B)
        ctx.save_for_backward(
            rows, W_GI, U_GH, gates, h, None if inner is not None else state, inner
        )
        ctx.call, ctx.width = call, width
        ctx.has_inner_bias = inner_bias[0] is not None
        ctx.dtypes = [None if t is None else t.dtype for t in given]
        ctx.set_materialize_grads(False)
        results = []
        for h_TBH, last, before in zip(shown, after, zip(h_0, c_0, strict=True), strict=True):
            results.append(call.cut(h_TBH[1:]).transpose(0, 1))
            # A copy: a state outlives the outputs, and must not keep all of them in memory.
            for state_BH, given_BH in zip(last, before, strict=False):
                results.append(call.cut(state_BH).to(given_BH.dtype, copy=True))
        return tuple(results)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        rows, W, U, gates, h, state, inner = ctx.saved_tensors
        call: _Call = ctx.call
        launch, size, hidden_size = call.launch, call.size, call.hidden_size
        directions = len(ctx.dtypes) // 8
        num_steps, batch_size = h.shape[-3] - 1, h.shape[-2]
        num_states = len(gradients) // directions - 1
        to_outputs = _stacked([_gradient(g, h, call) for g in gradients[:: num_states + 1]])
        # What is carried along, and the counters: zeros, all in one piece.
        states_shape = (num_states, *h.shape[:-3], batch_size, size)
        numbers = math.prod(states_shape)
        room = gates.new_zeros(numbers + launch.num_counters_back, dtype=torch.float32)
        carried = room[:numbers].view(states_shape).unbind()
        for k, to_state in enumerate(carried):
            given = gradients[1 + k :: num_states + 1]
            for room_BH, to_last_BH in zip(_apart(to_state, directions), given, strict=True):
                if to_last_BH is not None:
                    call.put(room_BH, to_last_BH)
        to_h, to_c = carried if num_states == 2 else (*carried, None)
        to_gates = torch.empty_like(gates)
        resets_before = inner is not None and not ctx.has_inner_bias
        to_projected = torch.empty_like(gates) if ctx.has_inner_bias else to_gates
        launch.backward(
            num_steps,
            to_outputs,
            U,
            gates,
            h,
            state,
            inner,
            to_gates,
            to_projected,
            to_h,
            to_c,
            call.lengths_B,
            room[numbers:].view(torch.int32),
        )
        needs = ctx.needs_input_grad[1:]
        # Through U h: all gates, but for the GRU with reset_before, whose last reads r * h.
        through = 2 * size if resets_before else None
        # Sums over rows as products: torch's own sum takes several times the rows' memory.
        ones = gates.new_ones(1, num_steps * batch_size)
        found: list[Tensor | None] = []
        tensors = (rows, W, U, to_gates, to_projected, h, inner, to_h, to_c)
        apart = zip(*(_apart(tensor, directions) for tensor in tensors), strict=True)
        for d, (x_NI, W_GI, U_GH, recurrent, projected, *others) in enumerate(apart):
            h_TBH, inner_NH, to_h_BH, to_c_BH = others
            to_x = to_first = to_inner = to_before = to_cell = None
            if needs[8 * d]:
                to_x_TBI = (projected @ W_GI).view(num_steps, batch_size, -1)
                to_x_TBI = to_x_TBI[..., : ctx.width] if W_GI.shape[1] > ctx.width else to_x_TBI
                to_x = to_x_TBI.transpose(0, 1)
            if needs[8 * d + 3]:
                to_first = call.without_padding(recurrent[:batch_size].t(), call.dtype).t()
            to_U = recurrent[:, :through].t() @ h_TBH[:-1].flatten(0, 1)
            if resets_before:
                to_U = torch.cat([to_U, recurrent[:, through:].t() @ inner_NH])
            elif inner is not None:
                to_inner = call.cut((ones @ recurrent[:, 2 * size :])[0])
            if needs[8 * d + 6]:
                to_before = to_h_BH + recurrent[:batch_size, :through] @ U_GH[:through]
                to_before = call.cut(to_before)
            if needs[8 * d + 7]:
                to_cell = call.cut(to_c_BH)
            dtypes = ctx.dtypes[8 * d : 8 * d + 8]
            found += [
                to_x,
                call.without_padding(projected.t() @ x_NI, dtypes[1], ctx.width),
                call.without_padding((ones @ projected)[0], dtypes[2]),
                to_first,
                call.without_padding(to_U, dtypes[4], hidden_size),
                to_inner,
                to_before,
                to_cell,
            ]
        cast = [
            t if t is None or t.dtype == dtype else t.to(dtype)
            for t, dtype in zip(found, ctx.dtypes, strict=True)
        ]
        return (None, *cast)


def _gradient(given_BTH: Tensor | None, h: Tensor, call: _Call) -> Tensor:
    """The outputs' gradient, (T, B, H)."""
    shape_TBH = (h.shape[-3] - 1, *h.shape[-2:])
    if given_BTH is None:
        return h.new_zeros(shape_TBH)
    outputs_TBH = given_BTH.transpose(0, 1)
    if call.extra:
        return _in_corner(outputs_TBH, shape_TBH, h.dtype)
    return outputs_TBH.to(h.dtype).contiguous()
