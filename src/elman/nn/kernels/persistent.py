"""LSTM, GRU and RNN on CUDA in one launch per sequence, the recurrent matrix held on the chip.

cuDNN and torch launch several kernels per time step and read the recurrent matrix again at each.
Here one Triton kernel (`persistent_loops.py`) makes all steps; the products over all steps at once,
W x before it and the gradients of the matrices after it, are torch's. It serves bfloat16, float16
and float32; sums and the LSTM's cells, or the GRU's state, are in float32.

The programs of a launch read from each other, so all of them must run at the same time. There are
never more of them than multiprocessors, and the launch is cooperative: the driver starts it when
all fit, or refuses it. A shape whose matrix does not fit goes to the next best kernel.

Sizes are padded inside: units to 2^a or 2^a + 2^b, with weights of zero, which leaves states at
zero. A projected LSTM (h = R (o * tanh(c))) recurs by the matrix U R, of plain shape, so that
it needs no loop of its own.

D directions (1, or 2 side by side), T time steps, B batch, I inputs, H hidden units, P outputs,
G gates times H.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from elman.nn.cells import Cell, GRUCell, LSTMCell, RNNCell
from elman.nn.kernels import reference, torch_rnn
from elman.nn.kernels.persistent_plan import (
    H200,
    Chip,
    Plan,
    Way,
    grids,
    padded_size,
    plan,
    programs_per_slice,
)
from elman.nn.shapes import Float, Int
from elman.nn.state import State

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Triton's interpreter runs one program after the other, on any device: steps one by one."""


def serves(cell: Cell, device: torch.device) -> bool:
    """LSTM without peepholes and clipping, both GRUs and RNNs, where Triton runs."""
    return _has(cell) and runs_on(device)


def runs_on(device: torch.device) -> bool:
    """Whether Triton's kernels run there."""
    return device.type == "cuda" and _device_serves(_index(device))


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


def _has(cell: Cell) -> bool:
    if cell.layer_norm:
        return False
    if isinstance(cell, LSTMCell):
        return cell.peephole_weight is None and not cell.is_clipped
    return isinstance(cell, GRUCell | RNNCell)


@lru_cache(None)
def _device_serves(index: int) -> bool:
    has_triton = importlib.util.find_spec("triton") is not None
    return has_triton and torch.cuda.get_device_capability(index) >= (8, 0)


@lru_cache(None)
def _chip(index: int) -> Chip:
    properties: Any = torch.cuda.get_device_properties(index)
    shared = getattr(properties, "shared_memory_per_block_optin", 99 * 1024)
    return Chip(properties.multi_processor_count, shared)


def run(
    cell: Cell,
    inputs_BTI: Float[Tensor, "B T I"],
    state: State,
    lengths_B: Int[Tensor, "B"] | None,
    recurrent_weight: Float[Tensor, "G P"],
) -> tuple[Float[Tensor, "B T P"], State]:
    """The whole sequence: one product, one launch."""
    return run_directions([cell], [inputs_BTI], [state], lengths_B, [recurrent_weight])[0]


def run_directions(
    cells: list[Cell],
    inputs: list[Float[Tensor, "B T I"]],
    states: list[State],
    lengths_B: Int[Tensor, "B"] | None,
    recurrent_weights: list[Float[Tensor, "G P"]],
) -> list[tuple[Float[Tensor, "B T P"], State]]:
    """Several layers of the same shape at once, each over its own inputs."""
    device = inputs[0].device
    dtype = inputs[0].dtype
    if torch.is_autocast_enabled(device.type):
        dtype = torch.get_autocast_dtype(device.type)
    cell, batch_size = cells[0], len(inputs[0])
    size = padded_size(cell.hidden_size)
    sharing = None
    if dtype in (torch.bfloat16, torch.float16, torch.float32) and inputs[0].shape[1] > 0:
        chip = H200 if INTERPRETED else _chip(_index(device))
        sharing = plan(size, batch_size, dtype.itemsize, len(cells), chip)
    if sharing is None:
        if len(cells) > 1:
            return [
                run_directions([c], [x], [s], lengths_B, [u])[0]
                for c, x, s, u in zip(cells, inputs, states, recurrent_weights, strict=True)
            ]
        kernel = _other(cell, device)
        return [kernel.run(cell, inputs[0], states[0], lengths_B, recurrent_weights[0])]
    with torch.autocast(device.type, enabled=False):
        return _run(cells, inputs, states, lengths_B, recurrent_weights, dtype, size, sharing)


def step(
    cell: Cell, inputs_BI: Float[Tensor, "B I"], state: State
) -> tuple[Float[Tensor, "B P"], State]:
    """One step, by the next best kernel: there is nothing to gain from one."""
    result: tuple[Tensor, State] = _other(cell, inputs_BI.device).step(cell, inputs_BI, state)
    return result


def _other(cell: Cell, device: torch.device) -> ModuleType:
    return torch_rnn if torch_rnn.serves(cell, device) else reference


def _run(
    cells: list[Cell],
    inputs: list[Tensor],
    states: list[State],
    lengths_B: Tensor | None,
    recurrent_weights: list[Tensor],
    dtype: torch.dtype,
    size: int,
    sharing: Plan,
) -> list[tuple[Tensor, State]]:
    given: list[Tensor | None] = []
    for cell, x_BTI, state, U in zip(cells, inputs, states, recurrent_weights, strict=True):
        h_BP, first_BG = state.tensor("h"), None
        if _is_projected(cell):
            # What recurs is R h. The initial state has been through R already, so that its part in
            # the first step's gates is added by itself.
            first_BG = F.linear(h_BP.to(dtype), U.to(dtype))
            U = U.to(dtype) @ _projection(cell).to(dtype)
            h_BP = h_BP.new_zeros(len(h_BP), cell.hidden_size)
        c_BH = state.tensor("c") if isinstance(cell, LSTMCell) else None
        inner_bias = cell.recurrent_bias if isinstance(cell, GRUCell) else None
        given += [x_BTI, cell.input_weight, cell.bias, first_BG, U, inner_bias, h_BP, c_BH]
    shape = _Shape(_kind(cells[0]), dtype, cells[0].hidden_size, size, sharing, lengths_B)
    found = iter(_Recurrence.apply(shape, *given))  # type: ignore[no-untyped-call]
    results = []
    for cell, state in zip(cells, states, strict=True):
        outputs_BTP = next(found)
        after = {key: next(found) for key in cell.state_sizes}
        if lengths_B is not None:
            time_T = torch.arange(outputs_BTP.shape[1], device=outputs_BTP.device)
            real_BT1 = (time_T < lengths_B.to(time_T.device).unsqueeze(1)).unsqueeze(2)
            outputs_BTP = torch.where(real_BT1, outputs_BTP, 0)
        if _is_projected(cell):
            R = _projection(cell).to(dtype)
            outputs_BTP = F.linear(outputs_BTP, R)
            after["h"] = F.linear(after["h"].to(dtype), R)
        new = {key: tensor.to(state.tensor(key).dtype) for key, tensor in after.items()}
        results.append((outputs_BTP, State(new)))
    return results


def _is_projected(cell: Cell) -> bool:
    return isinstance(cell, LSTMCell) and cell.projection_weight is not None


def _projection(cell: Cell) -> Tensor:
    assert isinstance(cell, LSTMCell)
    assert cell.projection_weight is not None
    return cell.projection_weight


def _kind(cell: Cell) -> int:
    from elman.nn.kernels import persistent_loops as loops

    if isinstance(cell, LSTMCell):
        return loops.LSTM
    if isinstance(cell, GRUCell):
        return loops.GRU if cell.form == "reset_after" else loops.GRU_BEFORE
    assert isinstance(cell, RNNCell)
    return {"tanh": loops.TANH, "relu": loops.RELU, "sigmoid": loops.SIGMOID}[cell.nonlinearity]


@dataclass(frozen=True)
class _Shape:
    """What a call computes, and how."""

    kind: int
    dtype: torch.dtype
    hidden_size: int
    size: int
    """Hidden units with padding."""
    sharing: Plan
    lengths_B: Tensor | None

    @property
    def is_gru(self) -> bool:
        """Whether it is a GRU of either form, which keeps its present state in float32."""
        return self.num_gates == 3

    @property
    def num_gates(self) -> int:
        """Matrices stacked in W."""
        from elman.nn.kernels import persistent_loops as loops

        return {loops.LSTM: 4, loops.GRU: 3, loops.GRU_BEFORE: 3}.get(self.kind, 1)

    @property
    def extra(self) -> int:
        """Units of padding."""
        return self.size - self.hidden_size

    def gates(self, tensors: list[Tensor], columns: int = 0) -> Tensor:
        """Stacked gates of all directions, with rows of zeros after each gate's own."""
        return _side_by_side([self._padded(t.detach().to(self.dtype), columns) for t in tensors])

    def _padded(self, matrix: Tensor, columns: int) -> Tensor:
        if not self.extra:
            return matrix.contiguous()
        by_gate = matrix.reshape(-1, self.hidden_size, *matrix.shape[1:])
        around = (0, self.extra) if matrix.dim() == 1 else (0, columns, 0, self.extra)
        return F.pad(by_gate, around).flatten(0, 1)

    def without_padding(self, matrix: Tensor, columns: int | None = None) -> Tensor:
        """The way back from `gates`, for one direction."""
        if not self.extra:
            return matrix
        by_gate = matrix.view(-1, self.size, *matrix.shape[1:])[:, : self.hidden_size]
        return by_gate.flatten(0, 1)[..., :columns]

    def states(self, tensors: list[Tensor]) -> Tensor:
        """States of all directions, in float32."""
        return _side_by_side([F.pad(t.detach().float(), (0, self.extra)) for t in tensors])


def _side_by_side(tensors: list[Tensor]) -> Tensor:
    """One tensor per direction, stacked; a single one is not copied."""
    return tensors[0].unsqueeze(0) if len(tensors) == 1 else torch.stack(tensors)


class _Recurrence(torch.autograd.Function):
    """From inputs and states to the states that follow, for all directions.

    One function from the inputs as they come to the outputs as they are wanted: each small step
    of autograd around it would cost more than its work. For each direction it takes the inputs, W,
    the bias, what is added to the first step's gates (or None), U, the inner bias (or None), h
    and c (or None), and returns outputs, h and c.
    """

    @staticmethod
    def forward(ctx: Any, shape: _Shape, *given: Any) -> tuple[Tensor, ...]:
        x, W, bias, first, U, inner_bias, h_0, c_0 = ([*given[k::8]] for k in range(8))
        batch_size, num_steps, input_size = x[0].shape
        directions, size = len(x), shape.size
        x_DNI = _side_by_side(
            [t.detach().to(shape.dtype).transpose(0, 1).reshape(-1, input_size) for t in x]
        )
        W_DGI, U_DGH = shape.gates(W), shape.gates(U, shape.extra)
        if directions == 1:
            gates = torch.addmm(shape.gates(bias)[0], x_DNI[0], W_DGI[0].t())
        else:
            gates = torch.baddbmm(shape.gates(bias).unsqueeze(1), x_DNI, W_DGI.transpose(1, 2))
        gates = gates.view(directions, num_steps, batch_size, -1)
        if first[0] is not None:
            gates[:, 0] += shape.gates([t.t() for t in first]).transpose(1, 2)
        h = gates.new_empty(directions, num_steps + 1, batch_size, size)
        h_DBH = shape.states(h_0)
        h[:, 0] = h_DBH
        inner = state = inner_bias_DH = None
        if c_0[0] is not None:
            state = h_DBH.new_empty(h.shape)
            state[:, 0] = shape.states(c_0)
        if shape.is_gru:
            state = _copied(h_DBH)
            inner = torch.empty_like(h[:, 1:])
        if inner_bias[0] is not None:
            inner_bias_DH = shape.gates(inner_bias)
        launch = _Launch(shape, gates)
        launch.forward(gates, U_DGH, inner_bias_DH, h, state, inner)
        ctx.save_for_backward(
            x_DNI, W_DGI, U_DGH, gates, h, state if c_0[0] is not None else None, inner
        )
        ctx.shape, ctx.launch = shape, launch
        ctx.has_inner_bias = inner_bias[0] is not None
        ctx.dtypes = [None if t is None else t.dtype for t in given]
        ctx.set_materialize_grads(False)
        results = []
        for d in range(directions):
            results.append(h[d, 1:, :, : shape.hidden_size].transpose(0, 1))
            # A state outlives the outputs: a copy, lest it keep all of them.
            last = h[d, -1] if inner is None else state[d]  # type: ignore[index]
            results.append(last[:, : shape.hidden_size].clone())
            if c_0[0] is not None:
                results.append(state[d, -1, :, : shape.hidden_size].clone())  # type: ignore[index]
        return tuple(results)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        x_DNI, W, U, gates, h, state, inner = ctx.saved_tensors
        shape: _Shape = ctx.shape
        directions, num_steps, batch_size, _ = gates.shape
        per_direction = len(gradients) // directions
        to_outputs, to_h, *to_cells = (
            _side_by_side([_gradient(g, k, h, shape) for g in gradients[k::per_direction]])
            for k in range(per_direction)
        )
        to_c = to_cells[0] if to_cells else None
        to_gates = torch.empty_like(gates)
        resets_before = inner is not None and not ctx.has_inner_bias
        to_projected = torch.empty_like(gates) if ctx.has_inner_bias else to_gates
        ctx.launch.backward(
            to_outputs.contiguous(), U, gates, h, state, inner, to_gates, to_projected, to_h, to_c
        )
        needs = ctx.needs_input_grad[1:]
        # Through U h: all gates, but for the lecture's GRU, whose last reads r * h.
        through = 2 * shape.size if resets_before else U.shape[1]
        if any(needs[6::8]):
            to_h += torch.bmm(to_gates[:, 0, :, :through], U[:, :through])
        found: list[Tensor | None] = []
        for d in range(directions):
            rows, recurrent = to_projected[d].flatten(0, 1), to_gates[d].flatten(0, 1)
            before = h[d, :-1].flatten(0, 1)
            to_x = to_first = to_inner = None
            if needs[8 * d]:
                to_x = (rows @ W[d]).view(num_steps, batch_size, -1).transpose(0, 1)
            if needs[8 * d + 3]:
                to_first = shape.without_padding(to_gates[d, 0].t()).t()
            to_U = recurrent[:, :through].t() @ before
            if resets_before:
                to_n = recurrent[:, through:].t() @ inner[d].flatten(0, 1)
                to_U = torch.cat([to_U, to_n])
            elif inner is not None:
                to_inner = recurrent[:, 2 * shape.size :].sum(0)[: shape.hidden_size]
            found += [
                to_x,
                shape.without_padding(rows.t() @ x_DNI[d]),
                shape.without_padding(rows.sum(0)),
                to_first,
                shape.without_padding(to_U, shape.hidden_size),
                to_inner,
                to_h[d, :, : shape.hidden_size] if needs[8 * d + 6] else None,
                None if to_c is None else to_c[d, :, : shape.hidden_size],
            ]
        cast = [
            None if t is None else t.to(dtype) for t, dtype in zip(found, ctx.dtypes, strict=True)
        ]
        return (None, *cast)


def _gradient(given: Tensor | None, number: int, h: Tensor, shape: _Shape) -> Tensor:
    """The outputs' gradient (number 0), or a final state's in float32, to be carried along."""
    if number == 0:
        if given is None:
            return torch.zeros_like(h[0, 1:])
        outputs_TBH = given.transpose(0, 1).to(h.dtype)
        return F.pad(outputs_TBH, (0, shape.extra)) if shape.extra else outputs_TBH
    if given is None:
        return torch.zeros_like(h[0, 0], dtype=torch.float32)
    state_BH = given.float()
    # A copy of its own, since it is changed along the way.
    return F.pad(state_BH, (0, shape.extra)) if shape.extra else _copied(state_BH)


def _copied(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def _options(way: Way, length: int) -> dict[str, Any]:
    """What a launch is told of its way; sums over `length` are cut into tiles and a rest."""
    tile = min(way.tile, 1 << (length.bit_length() - 1))
    options = {"TILE": tile, "REST": length % tile, "SWAP": way.swap}
    if INTERPRETED:
        return options
    # One stage: nothing may be read ahead of the waiting.
    return options | {"num_warps": way.warps, "num_stages": 1, "launch_cooperative_grid": True}


class _Launch:
    """The launches of both ways, with what they share."""

    def __init__(self, shape: _Shape, gates: Tensor) -> None:
        from elman.nn.kernels import persistent_loops as loops

        self.loops = loops
        kind, sharing, lengths, size = shape.kind, shape.sharing, shape.lengths_B, shape.size
        self.lengths = None if lengths is None else lengths.to(gates.device, torch.int32)
        self.device = gates.device
        self.directions, self.num_steps, self.batch_size, _ = gates.shape
        num_gates = shape.num_gates
        self.size = size
        self.split = programs_per_slice(sharing, num_gates)
        self.grid, self.grid_back = grids(sharing, size, num_gates, self.directions)
        self.num_parts = num_gates * sharing.backward.pieces
        common = {
            "H": size,
            "UNITS": sharing.units,
            "ROWS": sharing.rows,
            "RAGGED": lengths is not None,
            "PRECISION": "ieee" if INTERPRETED or gates.dtype != torch.float32 else "tf32x3",
        }
        self.resets_before = kind == loops.GRU_BEFORE
        if self.resets_before:
            self.grid_back = self.grid
            self.constants = self.constants_back = {
                **common,
                **_options(replace(sharing.forward, swap=False), size),
            }
            del self.constants["SWAP"]
            return
        common |= {"CELL": kind, "GATES": num_gates}
        self.constants = {**common, **_options(sharing.forward, size)}
        self.constants_back = {
            **common,
            **_options(sharing.backward, size // sharing.backward.pieces),
            "PIECES": sharing.backward.pieces,
        }

    def forward(
        self,
        gates: Tensor,
        U: Tensor,
        inner_bias: Tensor | None,
        h: Tensor,
        state: Tensor | None,
        inner: Tensor | None,
    ) -> None:
        """All steps, from the first to the last."""
        if self.resets_before:
            self._each_half("forward", (gates, U, h, state, inner))
            return
        counters = self._counters(1)
        for first, last in self._launches():
            self._on_device(self.loops.forward, self.grid)(
                gates,
                U,
                inner_bias,
                h,
                state,
                inner,
                self.lengths,
                counters,
                first,
                last,
                self.num_steps,
                self.batch_size,
                PERSISTENT=not INTERPRETED,
                **self.constants,
            )

    def backward(
        self,
        to_outputs: Tensor,
        U: Tensor,
        gates: Tensor,
        h: Tensor,
        state: Tensor | None,
        inner: Tensor | None,
        to_gates: Tensor,
        to_projected: Tensor,
        to_h: Tensor,
        to_c: Tensor | None,
    ) -> None:
        """All steps, from the last to the first."""
        if self.resets_before:
            self._each_half("backward", (to_outputs, U, gates, h, to_gates, to_h))
            return
        shape = (self.directions, 2, self.num_parts, self.batch_size, self.size)
        parts = to_h.new_empty(shape)
        counters = self._counters(1 + self.grid_back[0] // self.split)
        for first, last in self._launches():
            for stage in (1, 2) if INTERPRETED else (0,):
                self._on_device(self.loops.backward, self.grid_back)(
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
                    parts,
                    self.lengths,
                    counters,
                    first,
                    last,
                    self.num_steps,
                    self.batch_size,
                    STAGE=stage,
                    **self.constants_back,
                )

    def _each_half(self, way: str, tensors: tuple[Tensor | None, ...]) -> None:
        """The lecture's GRU: a step has two halves."""
        from elman.nn.kernels import persistent_gru

        counters = self._counters(2)
        for first, last in self._launches():
            for stage in (1, 2) if INTERPRETED else (0,):
                self._on_device(getattr(persistent_gru, way), self.grid)(
                    *tensors,
                    self.lengths,
                    counters,
                    first,
                    last,
                    self.num_steps,
                    self.batch_size,
                    STAGE=stage,
                    **self.constants,
                )

    def _on_device(self, kernel: Any, grid: tuple[int, int, int]) -> Callable[..., None]:
        """The kernel, to be launched where the tensors are: Triton takes the current device."""

        def launch(*arguments: Any, **constants: Any) -> None:
            with nullcontext() if INTERPRETED else torch.cuda.device(self.device):
                kernel[grid](*arguments, **constants)

        return launch

    def _counters(self, per_group: int) -> Tensor:
        number = self.directions * self.grid[1] * per_group
        return torch.zeros(number, dtype=torch.int32, device=self.device)

    def _launches(self) -> list[tuple[int, int]]:
        if INTERPRETED:
            return [(t, t + 1) for t in range(self.num_steps)]
        return [(0, self.num_steps)]
