"""LSTMs with mogrifiers and other extras on CUDA: all layers of a stack at once, as a wave.

A mogrifier's rounds depend on each other, and a step on the one before it: each is a few small
launches that leave most of the chip idle. So a launch computes the same part of a step for all
layers of a stack: in slot s, layer l makes step s - l, which needs what the layer below made one
slot earlier. What is elementwise is part of the launch that makes its numbers (`wave_loops.py`),
and a launch reads its weights while the one before it still runs. The gradients of the matrices are
products over all steps, made after the loop.

It serves a capped input gate, state dropout and mogrifiers of low rank, in 16 or 32 bits; layers of
a wave have one shape and as many inputs as units. A single layer is a wave of one, with any number
of inputs. Rows have one length. Derivatives are first ones only.

L layers, T time steps, B batch, I inputs, H hidden units (and outputs), R rank, G gates times H.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from elman.nn.cells import Cell, LSTMCell
from elman.nn.cells import step as step  # `as`: a part of this module, which is a `Kernel`
from elman.nn.kernels import stepwise
from elman.nn.kernels.persistent_launch import INTERPRETED, CompiledLaunch, chip_of, index_of
from elman.nn.kernels.persistent_tiling import Chip
from elman.nn.shapes import Float, Int
from elman.nn.state import State


def serves(cell: Cell) -> bool:
    """Whether this kernel computes such a cell."""
    return (
        stepwise.serves(cell)
        and isinstance(cell, LSTMCell)
        and all(isinstance(module, torch.nn.Sequential) for module in cell.mogrifiers)
    )


def rank_of(cell: LSTMCell) -> int:
    """The rank of its mogrifiers; 0 if it has none, or full matrices."""
    for module in cell.mogrifiers:
        if isinstance(module, torch.nn.Sequential):
            return len(next(module.parameters()))
    return 0


def run(
    cell: Cell,
    inputs_BTI: Float[Tensor, "B T I"],
    state: State,
    lengths_B: Int[Tensor, "B"] | None,
    recurrent_weight: Float[Tensor, "G P"],
    plan: object,
    mask_BP: Float[Tensor, "B P"] | None = None,
) -> tuple[Float[Tensor, "B T P"], State]:
    """One layer alone; `mask_BP` multiplies h before each step reads it (state dropout)."""
    assert lengths_B is None
    masks = [] if mask_BP is None else [mask_BP]
    return run_layers([cell], inputs_BTI, [state], [recurrent_weight], masks)[0]


def run_layers(
    cells: Sequence[Cell],
    inputs_BTI: Float[Tensor, "B T I"],
    states: Sequence[State],
    recurrent_weights: Sequence[Float[Tensor, "G P"]],
    masks: Sequence[Float[Tensor, "B P"]] = (),
    between: Sequence[Float[Tensor, "B T P"]] = (),
) -> list[tuple[Float[Tensor, "B T P"], State]]:
    """Layers on top of each other, the lowest first: the outputs and the last state of each.

    `masks` are those of the states; `between` is what multiplies the outputs of each layer but the
    last one before the next one reads them (dropout): of all steps, or of one for all. Empty for
    none.
    """
    device = inputs_BTI.device
    assert not masks or len(masks) == len(cells)
    assert not between or len(between) == len(cells) - 1
    is_autocast = torch.is_autocast_enabled(device.type)
    dtype = torch.get_autocast_dtype(device.type) if is_autocast else inputs_BTI.dtype
    if not inputs_BTI.shape[1]:
        nothing = inputs_BTI.new_empty(len(inputs_BTI), 0, cells[0].output_size, dtype=dtype)
        return [(nothing, state) for state in states]
    with torch.autocast(device.type, enabled=False) if is_autocast else nullcontext():
        mask_LBH = torch.stack(list(masks)).to(dtype) if masks else None
        between_LTBH = None
        if between:
            between_LTBH = torch.stack([mask.transpose(0, 1) for mask in between]).to(dtype)
        parts: list[Tensor] = []
        for cell, state, U in zip(cells, states, recurrent_weights, strict=True):
            assert isinstance(cell, LSTMCell)
            rounds = [matrix for module in cell.mogrifiers for matrix in module.parameters()]
            parts += [cell.input_weight, U, cell.bias]
            parts += [state.tensor("h"), state.tensor("c"), *rounds]
            call = _Call(dtype, len(cells), cell.cap_input)
        found = iter(_Wave.apply(call, inputs_BTI, mask_LBH, between_LTBH, *parts))  # type: ignore[no-untyped-call]
        return [(next(found), State({"h": next(found), "c": next(found)})) for _ in cells]


@dataclass(frozen=True)
class _Call:
    """What a call computes."""

    dtype: torch.dtype
    num_layers: int
    cap_input: bool


@dataclass(frozen=True)
class _Shape:
    """All that launches depend on."""

    dtype: torch.dtype
    device: int
    num_layers: int
    batch_size: int
    input_size: int
    hidden_size: int
    rank: int
    num_rounds: int
    cap_input: bool
    is_masked: bool
    between: int
    """0: nothing multiplies what the next layer reads; 1: a mask for each step; 2: one for all."""


@dataclass(frozen=True)
class Tile:
    """How a launch is divided: the numbers that a program makes, and how deep it sums at once."""

    rows: int
    columns: int
    """Units in `cell`."""
    depth: int
    stages: int = 3


TILES: dict[str, Tile] = {
    "narrow": Tile(16, 16, 128),
    "gate": Tile(64, 16, 128),
    "cell": Tile(64, 16, 64, stages=4),
    "product_slopes": Tile(64, 64, 64, stages=6),
    "narrow_slopes": Tile(64, 16, 128),
}
LOOPS = {"cell": 1, "product_slopes": 2}
"""Launches that read their weights tile by tile, and in how many loops. The others hold them, but
for `narrow` in 32 bits: each number becomes two in registers there, and 912 of them were spilt to
memory, 8 KB for each thread."""
OVERLAPS = True
"""Whether launches start before those before them have ended."""
BLOCK = 512


def fits(input_size: int, hidden_size: int, rank: int, itemsize: int, chip: Chip) -> bool:
    """Whether the weights that launches hold leave room on the chip for what they multiply."""
    if not rank:
        return True
    widest = max(input_size, hidden_size)
    depths = {"narrow": _narrow_depth(widest, itemsize), "gate": TILES["gate"].depth}
    for name, length in {"narrow": widest, "gate": rank}.items():
        tile, depth = TILES[name], depths[name]
        num_tiles = -(-length // depth) if name == "gate" or _is_held(itemsize) else tile.stages
        held, beside = num_tiles * tile.columns, 2 * tile.rows
        if (held + beside) * depth * itemsize > chip.shared_memory:
            return False
    return True


def _is_held(itemsize: int) -> bool:
    """Whether `narrow` holds its weights."""
    return itemsize == 2


def _narrow_depth(length: int, itemsize: int) -> int:
    """How deep `narrow` sums at once: the whole `length`, unless that takes too much room."""
    depth = TILES["narrow"].depth
    if itemsize == 2 and length <= 1024:
        depth = max(depth, 1 << (length - 1).bit_length())
    return depth


def _fitting(name: str, itemsize: int, chip: Chip) -> Tile:
    """The tile of a launch, with fewer tiles read ahead where the chip has too little room."""
    tile = TILES[name]
    if name not in LOOPS:
        return tile
    columns = tile.columns * (4 if name == "cell" else 1)
    stage_bytes = LOOPS[name] * (tile.rows + columns) * tile.depth * itemsize
    return replace(tile, stages=max(1, min(tile.stages, chip.shared_memory // stage_bytes)))


class _Launches:
    """The launches for one shape, set up once."""

    def __init__(self, shape: _Shape, chip: Chip) -> None:
        from elman.nn.kernels import wave_loops

        self.shape = shape
        self.chip = chip
        self.loops = wave_loops
        # Older chips lack the instructions.
        can_overlap = wave_loops.can_overlap and chip.capability >= (9, 0)
        self.overlaps = OVERLAPS and can_overlap and not INTERPRETED
        self.precision = "tf32x3" if shape.dtype == torch.float32 and not INTERPRETED else "ieee"
        I, H, R = shape.input_size, shape.hidden_size, shape.rank  # noqa: E741
        rounds = range(1, shape.num_rounds + 1)
        masked = {"IS_MASKED": shape.is_masked, "BETWEEN": shape.between}
        gates = {"H": H, "LAYERS": shape.num_layers, "CAP": shape.cap_input, **masked}
        # The vectors that round k reads, and those that it gates: h and x in turns.
        reads = [H if k % 2 else I for k in rounds]
        gated = [I if k % 2 else H for k in rounds]
        # What was read in the first round and gated in the second has a step before the first.
        self.narrow = [
            self._tiled("narrow", R, EXTRA=int(k == 1), K=K, R=R, K_STRIDE=1, R_STRIDE=K)
            for k, K in zip(rounds, reads, strict=True)
        ]
        self.gate = [
            self._tiled("gate", N, EXTRA=int(k == 2), N=N, R=R)
            for k, N in zip(rounds, gated, strict=True)
        ]
        self.cell = self._tiled("cell", H, H_EXTRA=int(shape.num_rounds < 2), I=I, **gates)
        self.cell_slopes = self._blocks("cell_slopes", shape.batch_size * H, **gates)
        columns = TILES["product_slopes"].columns
        width = columns * (-(-I // columns) + -(-H // columns))
        last = {"ROUNDS": shape.num_rounds, "EXTRA": int(shape.num_rounds == 2)}
        self.product_slopes = self._tiled("product_slopes", width, I=I, H=H, **last)
        self.score_slopes = [
            self._tiled("narrow", R, EXTRA=0, K=N, R=R, K_STRIDE=R, R_STRIDE=1) for N in gated
        ]
        self.narrow_slopes = [
            self._tiled(
                *("narrow_slopes", max(K, N)), EXTRA=int(k == 3), K=K, N=N, R=R, IS_LAST=k == 1
            )
            for k, K, N in zip(rounds, reads, gated, strict=True)
        ]

    def _tiled(self, name: str, width: int, **constants: Any) -> CompiledLaunch:
        tile = _fitting(name, self.shape.dtype.itemsize, self.chip)
        batch_size = self.shape.batch_size
        rows = min(tile.rows, max(16, 1 << (batch_size - 1).bit_length()))
        grid = (-(-width // tile.columns), -(-batch_size // rows), self.shape.num_layers)
        depth = tile.depth
        if name == "narrow":
            depth = _narrow_depth(constants["K"], self.shape.dtype.itemsize)
            constants["HELD"] = _is_held(self.shape.dtype.itemsize)
        constants |= {"ROWS": rows, "DEPTH": depth, "PRECISION": self.precision}
        constants["UNITS" if name == "cell" else "COLUMNS"] = tile.columns
        return self._launch(name, grid, constants, tile.stages)

    def _blocks(self, name: str, count: int, **constants: Any) -> CompiledLaunch:
        grid = (-(-count // BLOCK), 1, self.shape.num_layers)
        return self._launch(name, grid, {**constants, "BLOCK": BLOCK}, 1)

    def _launch(
        self, name: str, grid: tuple[int, int, int], constants: dict[str, Any], stages: int
    ) -> CompiledLaunch:
        options = {"num_warps": 4, "num_stages": stages}
        if self.overlaps:
            options["launch_pdl"] = True
        constants = {**constants, "OVERLAP": self.overlaps}
        function = self.loops.LAUNCHES[name]
        return CompiledLaunch(function, grid, constants, options, self.shape.device, num_numbers=3)


@lru_cache(64)
def _launches_for(shape: _Shape) -> _Launches:
    return _Launches(shape, chip_of(shape.device))


class _Weights:
    """The layers' matrices and states, each kind of them stacked: (L, ...)."""

    def __init__(self, call: _Call, parts: Sequence[Tensor]) -> None:
        num_parts = len(parts) // call.num_layers
        layers = [parts[first : first + num_parts] for first in range(0, len(parts), num_parts)]
        W, U, bias, h, c, *rounds = zip(*layers, strict=True)
        self.W, self.U = _stacked(W, call.dtype), _stacked(U, call.dtype)
        self.bias = _stacked(bias, torch.float32)
        self.h, self.c = _stacked(h, call.dtype), _stacked(c, torch.float32)
        self.narrow = [_stacked(matrices, call.dtype) for matrices in rounds[::2]]
        self.widen = [_stacked(matrices, call.dtype) for matrices in rounds[1::2]]


def _stacked(tensors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    return torch.stack([tensor.detach().to(dtype) for tensor in tensors])


class _Wave(torch.autograd.Function):
    """From inputs, weights and states to the outputs and the last state of each layer."""

    @staticmethod
    def forward(
        ctx: Any,
        call: _Call,
        inputs_BTI: Tensor,
        mask_LBH: Tensor | None,
        between: Tensor | None,
        *parts: Tensor,
    ) -> tuple[Tensor, ...]:
        # The first launch reads weights before the operation before it has ended (`_wait`): they
        # are stacked here, before the copies of inputs and states below, and so are ready.
        weights, num_layers = _Weights(call, parts), call.num_layers
        batch_size, num_steps, input_size = inputs_BTI.shape
        hidden_size = weights.U.shape[2]
        shape = _Shape(
            dtype=call.dtype,
            device=index_of(inputs_BTI.device),
            num_layers=num_layers,
            batch_size=batch_size,
            input_size=input_size,
            hidden_size=hidden_size,
            rank=weights.narrow[0].shape[1] if weights.narrow else 0,
            num_rounds=len(weights.narrow),
            cap_input=call.cap_input,
            is_masked=mask_LBH is not None,
            between=0 if between is None else 1 + (between.shape[1] < num_steps),
        )
        launches = _launches_for(shape)
        new = weights.W.new_empty
        over_time = (num_layers, num_steps, batch_size)
        x = new(*over_time, input_size)
        x[0] = inputs_BTI.transpose(0, 1)
        h = new(num_layers, num_steps + 1, batch_size, hidden_size)
        h[:, 0] = weights.h if mask_LBH is None else weights.h * mask_LBH
        c = new(h.shape, dtype=torch.float32)
        c[:, 0] = weights.c
        outputs, values = new(*over_time, hidden_size), new(*over_time, 4 * hidden_size)
        # x and h before the first round, then what each round made. A round reads one, and gates
        # the one before it.
        vectors = [x, h]
        narrowed, gates = [], []
        for matrix in weights.widen:
            narrowed.append(new(*over_time, shape.rank))
            gates.append(new(*over_time, matrix.shape[1]))
            vectors.append(new(*over_time, matrix.shape[1]))
        last_x, last_h = _last(vectors)
        given_between = x if between is None else between.contiguous()
        given_mask = x if mask_LBH is None else mask_LBH
        for slot in range(num_steps + num_layers - 1):
            numbers = (slot, num_steps, batch_size)
            for k in range(shape.num_rounds):
                launches.narrow[k](vectors[k + 1], weights.narrow[k], narrowed[k], *numbers)
                launches.gate[k](
                    *(narrowed[k], weights.widen[k], vectors[k], vectors[k + 2], gates[k]),
                    *numbers,
                )
            launches.cell(
                *(last_x, last_h, weights.W, weights.U, weights.bias, c, values, outputs, h, x),
                *(given_between, given_mask, *numbers),
            )
        # Not as attributes: autograd frees what it saved once the backward pass is over.
        ctx.save_for_backward(
            *(weights.W, weights.U, values, c, given_mask, given_between),
            *(*weights.narrow, *weights.widen, *narrowed, *gates, *vectors),
        )
        ctx.launches = launches
        ctx.dtypes = (inputs_BTI.dtype, *[part.dtype for part in parts])
        ctx.set_materialize_grads(False)
        results = []
        for layer in range(num_layers):
            h_dtype, c_dtype = (part.dtype for part in parts[_of_layer(parts, call, layer)][3:5])
            # Copies: a state outlives the outputs, and must not keep all of them in memory.
            results += [
                outputs[layer].transpose(0, 1),
                outputs[layer, -1].to(h_dtype, copy=True),
                c[layer, -1].to(c_dtype, copy=True),
            ]
        return tuple(results)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        launches: _Launches = ctx.launches
        shape = launches.shape
        hidden_size, num_rounds = shape.hidden_size, shape.num_rounds
        W, U, values, c, mask, between, *rest = ctx.saved_tensors
        narrow, widen, narrowed, gates = (
            rest[k * num_rounds : (k + 1) * num_rounds] for k in range(4)
        )
        vectors = rest[4 * num_rounds :]
        num_layers, num_steps, batch_size = values.shape[:3]
        to_outputs = _gathered(gradients[::3], (num_steps, batch_size, hidden_size), values, True)
        to_last = _gathered(gradients[1::3], (batch_size, hidden_size), c, False)
        to_c = _gathered(gradients[2::3], (batch_size, hidden_size), c, False)
        to_h = torch.empty_like(to_last)
        to_x = to_last.new_empty(num_layers, batch_size, shape.input_size)
        # By round: the gradients of the vectors read and of those gated.
        read, gated = [to_h, to_x], [to_x, to_h]
        to_gates = torch.empty_like(values)
        to_inputs = values.new_empty(num_steps, batch_size, shape.input_size)
        to_scores = [torch.empty_like(share) for share in gates]
        to_narrowed = [torch.empty_like(part) for part in narrowed]
        last = num_rounds - 1  # whose scores' gradients come from the products; none without rounds
        of_last = (vectors[last], gates[last], to_scores[last]) if num_rounds else (values,) * 3
        for slot in reversed(range(num_steps + num_layers - 1)):
            numbers = (slot, num_steps, batch_size)
            launches.cell_slopes(
                *(to_outputs, to_last, to_h, to_x, to_c, between, mask, values, c, to_gates),
                *numbers,
            )
            launches.product_slopes(
                *(to_gates, W, U, to_x, to_h, to_inputs, *of_last, *numbers),
            )
            for k in reversed(range(num_rounds)):
                launches.score_slopes[k](to_scores[k], widen[k], to_narrowed[k], *numbers)
                launches.narrow_slopes[k](
                    *(to_narrowed[k], narrow[k], gates[k], read[k % 2], gated[k % 2]),
                    *(to_inputs, vectors[k - 1], gates[k - 1], to_scores[k - 1], *numbers),
                )
        last_x, last_h = _last(vectors)
        to_rounds = []
        for k in range(num_rounds):
            to_rounds.append(_over_steps(to_narrowed[k], vectors[k + 1][:, :num_steps]))
            to_rounds.append(_over_steps(to_scores[k], narrowed[k]))
        ones = values.new_ones(num_layers, num_steps * batch_size, 1)
        found = [
            _over_steps(to_gates, last_x),
            _over_steps(to_gates, last_h[:, :num_steps]),
            torch.bmm(to_gates.flatten(1, 2).transpose(1, 2), ones).squeeze(2),
            to_h * mask if shape.is_masked else to_h,
            to_c,
            *to_rounds,
        ]
        inputs_dtype, *dtypes = ctx.dtypes
        to_parts = [part[layer] for layer in range(num_layers) for part in found]
        cast = [part.to(dtype) for part, dtype in zip(to_parts, dtypes, strict=True)]
        return None, to_inputs.transpose(0, 1).to(inputs_dtype), None, None, *cast


def _last(vectors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """x and h as the last rounds left them: x has the even places."""
    *_, one, other = vectors
    return (one, other) if len(vectors) % 2 == 0 else (other, one)


def _of_layer(parts: Sequence[Tensor], call: _Call, layer: int) -> slice:
    size = len(parts) // call.num_layers
    return slice(layer * size, (layer + 1) * size)


def _gathered(
    gradients: Sequence[Tensor | None], shape: tuple[int, ...], like: Tensor, is_turned: bool
) -> Tensor:
    """The layers' gradients in one piece, (L, *shape); zeros for None."""
    room = like.new_empty(len(gradients), *shape)
    for place, gradient in zip(room, gradients, strict=True):
        if gradient is None:
            place.zero_()
        else:
            place.copy_(gradient.transpose(0, 1) if is_turned else gradient)
    return room


def _over_steps(slopes: Tensor, vectors: Tensor) -> Tensor:
    """The gradient of a matrix (L, N, K), from those of its products and what it multiplied."""
    return torch.bmm(slopes.flatten(1, 2).transpose(1, 2), vectors.flatten(1, 2))
