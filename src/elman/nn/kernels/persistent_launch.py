"""The launches of a recurrent layer's time loops, set up once for each shape (`persistent.py`).

A short sequence takes the GPU less time than Triton takes to look at the arguments of a launch. So
what does not change from call to call is worked out once, and kernels that Triton has compiled are
launched directly.

D directions, T time steps, B batch, H hidden units with padding, G gates times H.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from elman.nn.kernels.persistent_tiling import (
    H200,
    Chip,
    TileWay,
    Tiling,
    grids,
    programs_per_slice,
)

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Triton's interpreter runs one program after the other, on any device: steps one by one."""


def runs_on(device: torch.device) -> bool:
    """Whether Triton's kernels run there."""
    return INTERPRETED or (device.type == "cuda" and _is_capable(index_of(device)))


def index_of(device: torch.device) -> int:
    """The number of a CUDA device."""
    index: int | None = device.index
    if index is None:
        return 0 if INTERPRETED else torch.cuda.current_device()
    return index


@lru_cache(None)
def _is_capable(index: int) -> bool:
    has_triton = importlib.util.find_spec("triton") is not None
    return has_triton and torch.cuda.get_device_capability(index) >= (8, 0)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """All that launches depend on."""

    kind: int
    """The cell's number in the loops."""
    num_gates: int
    dtype: torch.dtype
    size: int
    """Hidden units with padding."""
    batch_size: int
    directions: int
    is_ragged: bool
    device: int


@lru_cache(None)
def chip_of(index: int) -> Chip:
    """The sizes of a CUDA device."""
    if INTERPRETED:
        return H200
    properties: Any = torch.cuda.get_device_properties(index)
    shared = getattr(properties, "shared_memory_per_block_optin", 99 * 1024)
    capability = torch.cuda.get_device_capability(index)
    return Chip(properties.multi_processor_count, shared, capability)


@lru_cache(256)
def launch_for(shape: Shape, tiling: Tiling) -> Launch:
    """The launches for a shape, set up once."""
    return Launch(shape, tiling)


class Launch:
    """The launches of both passes for one shape."""

    def __init__(self, shape: Shape, tiling: Tiling) -> None:
        from elman.nn.kernels import persistent_gru, persistent_loops

        self.batch_size = batch_size = shape.batch_size
        self.size = size = shape.size
        num_gates, directions, device = shape.num_gates, shape.directions, shape.device
        grid, grid_back = grids(tiling, size, num_gates, directions)
        num_groups = directions * tiling.groups
        common: dict[str, Any] = {
            "H": size,
            "UNITS": tiling.units,
            "ROWS": tiling.rows,
            "RAGGED": shape.is_ragged,
            "PRECISION": "ieee" if INTERPRETED or shape.dtype != torch.float32 else "tf32x3",
        }
        stages = (1, 2) if INTERPRETED else (0,)
        self.resets_before = shape.kind == persistent_loops.GRU_BEFORE
        if self.resets_before:
            way = tiling.forward
            common |= _tiles(way, size)
            self._forward, self._backward = (
                [_launch(loop, grid, {**common, "STAGE": stage}, way, device) for stage in stages]
                for loop in (persistent_gru.forward, persistent_gru.backward)
            )
            self.num_counters = self.num_counters_back = 2 * num_groups
            return
        common |= {"CELL": shape.kind, "GATES": num_gates}
        way, way_back = tiling.forward, tiling.backward
        constants = common | _tiles(way, size)
        constants |= {"SWAP": way.swap, "PERSISTENT": not INTERPRETED}
        self._forward = [_launch(persistent_loops.forward, grid, constants, way, device)]
        constants = common | _tiles(way_back, size // way_back.pieces)
        constants |= {"SWAP": way_back.swap, "PIECES": way_back.pieces}
        self._backward = [
            _launch(
                persistent_loops.backward,
                grid_back,
                {**constants, "STAGE": stage},
                way_back,
                device,
            )
            for stage in stages
        ]
        self.num_counters = num_groups
        self.num_counters_back = num_groups * (
            1 + grid_back[0] // programs_per_slice(tiling, num_gates)
        )
        self._parts_shape = (directions, 2, num_gates * way_back.pieces, batch_size, size)

    def forward(
        self,
        num_steps: int,
        gates: Tensor,
        U: Tensor,
        inner_bias: Tensor | None,
        h: Tensor,
        state: Tensor | None,
        inner: Tensor | None,
        lengths: Tensor | None,
    ) -> None:
        """All steps, from the first to the last."""
        counters = torch.zeros(self.num_counters, dtype=torch.int32, device=gates.device)
        if self.resets_before:
            tensors = [gates, U, h, state, inner, lengths, counters]
        else:
            tensors = [gates, U, inner_bias, h, state, inner, lengths, counters]
        self._launch(self._forward, tensors, num_steps)

    def backward(
        self,
        num_steps: int,
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
        lengths: Tensor | None,
        counters: Tensor,
    ) -> None:
        """All steps, from the last to the first. The counters are zeros."""
        if self.resets_before:
            tensors = [to_outputs, U, gates, h, to_gates, to_h, lengths, counters]
        else:
            parts = to_h.new_empty(self._parts_shape)
            tensors = [to_outputs, U, gates, h, state, inner, to_gates, to_projected, to_h, to_c]
            tensors += [parts, lengths, counters]
        self._launch(self._backward, tensors, num_steps)

    def _launch(
        self, kernels: list[CompiledLaunch], tensors: Sequence[Tensor | None], num_steps: int
    ) -> None:
        spans = [(t, t + 1) for t in range(num_steps)] if INTERPRETED else [(0, num_steps)]
        for first, last in spans:
            for kernel in kernels:
                kernel(*tensors, first, last, num_steps, self.batch_size)


class CompiledLaunch:
    """A Triton kernel with all that is the same at every launch."""

    def __init__(
        self,
        function: Any,
        grid: tuple[int, int, int],
        constants: dict[str, Any],
        options: dict[str, Any],
        device: int,
        *,
        num_numbers: int,
    ) -> None:
        """The last `num_numbers` arguments are numbers, those before them tensors."""
        self.function = function
        self.grid = grid
        self.constants = constants
        self.options = options
        self.device = device
        self.num_numbers = num_numbers
        self._compiled: dict[tuple[int, ...], Callable[..., None]] = {}
        self._values: list[Any] = []  # the constants, in the order of the kernel's parameters

    def __call__(self, *arguments: Tensor | int | None) -> None:
        if INTERPRETED:
            self.function[self.grid](*arguments, **self.constants)
            return
        # By their addresses: of a tensor the launcher would ask where it lies.
        given = [a.data_ptr() if isinstance(a, Tensor) else a for a in arguments]
        # Triton compiles anew for addresses that are no multiples of 16; all else is the same.
        odd = tuple([a % 16 for a in given[: -self.num_numbers] if a])
        launch = self._compiled.get(odd)
        with on_device(self.device):
            if launch is not None:
                launch(*given, *self._values)
                return
            options = {**self.constants, **self.options}
            compiled = self.function[self.grid](*arguments, **options)
            names = self.function.arg_names[len(arguments) :]
            self._values = [self.constants[name] for name in names]
            self._compiled[odd] = compiled[self.grid]


def on_device(index: int | None) -> AbstractContextManager[Any]:
    """Where Triton launches: it takes the current device, whatever the arguments' is."""
    if INTERPRETED or index is None or torch.cuda.current_device() == index:
        return nullcontext()
    return torch.cuda.device(index)


def _launch(
    function: Any,
    grid: tuple[int, int, int],
    constants: dict[str, Any],
    way: TileWay,
    device: int,
) -> CompiledLaunch:
    # One stage: nothing may be read ahead of the waiting.
    options = {"num_warps": way.warps, "num_stages": 1, "launch_cooperative_grid": True}
    return CompiledLaunch(function, grid, constants, options, device, num_numbers=4)


def _tiles(way: TileWay, length: int) -> dict[str, int]:
    """How sums over `length` are cut: tiles and a rest."""
    tile = min(way.tile, 1 << (length.bit_length() - 1))
    return {"TILE": tile, "REST": length % tile}
