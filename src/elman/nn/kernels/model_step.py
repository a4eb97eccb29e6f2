"""One step of a whole model in one compiled call: embedding, layers, output layer, on a CPU.

Calling layer by layer would spend most of a step's time in the interpreter. `ModelStep` collects
the addresses of a model's weights once; each call then runs one compiled
loop (`step_loops.py`), in one of three ways:

    IN_PLACE   one thread reads every weight once, for one or a few rows
    THREADS    the same on all threads: each takes some units of every layer and some words of the
               output layer, and they meet after each layer (one core reads memory at a fraction of
               the rate of all of them)
    PACKED     many rows, in chunks, times weights that MKL has packed for that number of rows

Weights are float32, or int8 with a scale per row (`nn/quantise.py`). If the vocabulary is small,
W x + b of the first layer is looked up per token instead of x. A step can also lack the embedding
or the output layer: `kernels/stream.py` uses that for single layers.

B rows, P rows padded to a chunk, I inputs, H hidden units, G gates times H, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from elman.nn.cells import Cell, GRUCell, LSTMCell
from elman.nn.kernels import mkl
from elman.nn.kernels.step_loops import (
    GRU_AFTER,
    GRU_BEFORE,
    LAYER,
    LSTM,
    MINGRU,
    MINLSTM,
    SRU,
    STEP,
    float_step,
    float_step_on_threads,
    int8_step,
    int8_step_on_threads,
    packed_step,
)
from elman.nn.kernels.team import Records
from elman.nn.scan_cells import MinGRUCell, MinLSTMCell, ScanCell, SRUCell
from elman.nn.state import State

CHUNK_SIZES = (16, 64)
"""Rows that are multiplied by packed weights at once."""


class Way(Enum):
    """How a step is computed."""

    IN_PLACE = "in place"
    THREADS = "all threads"
    PACKED = "packed"


@dataclass(frozen=True, kw_only=True)
class StepLimits:
    """The sizes at which one way becomes faster than another."""

    few_rows: int = 4
    """Most rows that are multiplied row by row."""
    shared_bytes: int = 3 << 19
    """Weights that are worth waking another thread for."""
    packed_bytes: int = 1 << 28
    """Largest model of which packed copies are made, one for each of the chunk sizes."""
    table_ratio: int = 4
    """Largest table of W x + b of every word, as a multiple of W's memory."""


class Output(NamedTuple):
    """An output layer, softmax(V h + b)."""

    weight_VH: Tensor
    int8: Any
    bias_V: Tensor


def kind_of(cell: Cell) -> int | None:
    """The number of a cell's compiled step; None if it has none for this cell and its dtype."""
    if cell.layer_norm or cell.bias.dtype != torch.float32 or cell.bias.device.type != "cpu":
        return None
    if type(cell) is LSTMCell:
        return None if cell.has_extras else LSTM
    if type(cell) is GRUCell:
        return GRU_BEFORE if cell.recurrent_bias is None else GRU_AFTER
    return {MinGRUCell: MINGRU, MinLSTMCell: MINLSTM, SRUCell: SRU}.get(type(cell))


class ModelStep:
    """The weights of cells of one kind, with or without an embedding and an output layer."""

    def __init__(
        self,
        cells: Sequence[Cell],
        embedding_VE: Tensor | None = None,
        output: Output | None = None,
        limits: StepLimits | None = None,
    ) -> None:
        kinds = {kind_of(cell) for cell in cells}
        assert len(kinds) <= 1
        kind = kinds.pop() if kinds else LSTM
        assert kind is not None
        self._kind, self._cells, self._output = kind, cells, output
        self._limits = limits = limits or StepLimits()
        self._kept: list[Tensor] = []
        """Tensors whose addresses stand in the records below."""
        given = [cell.int8 for cell in cells] + ([output.int8] if output else [])
        self._is_int8 = bool(given) and all(int8 is not None for int8 in given)
        self._sizes = [cell.hidden_size for cell in cells]
        self._names = ("h", "c") if kind == LSTM else ("h",)
        self._vocab_size = len(output.bias_V) if output else 0
        self._entering, is_projected = self._first_rows(embedding_VE)
        self._layers = _records(LAYER, [self._layer(cell) for cell in cells])
        step = {
            "kind": kind,
            "num_layers": len(cells),
            "is_projected": is_projected,
            "vocab_size": self._vocab_size,
        }
        if self._entering is not None:
            step |= {
                "entering": self._at(self._entering),
                "num_entries": len(self._entering),
                "entering_width": self._entering.shape[1],
            }
        if output:
            V, v_scale = self._matrix(output.weight_VH, output.int8)
            step |= {"V": V, "v_scale": v_scale, "v_bias": self._at(output.bias_V)}
        self._step = _records(STEP, [step])
        weights = [cell.input_weight for cell in cells[is_projected:]]
        weights += [cell.recurrent_weight for cell in cells]
        weights += [output.weight_VH] if output else []
        num_weights = sum(weight.numel() for weight in weights)
        self._num_bytes = num_weights if self._is_int8 else 4 * num_weights
        packs = embedding_VE is not None and kind != GRU_BEFORE and mkl.available()
        self._packs = packs and 4 * num_weights <= limits.packed_bytes
        self._packed: dict[int, tuple[Any, Any]] = {}
        """By chunk size, the records with the addresses of packed weights."""

    def way(self, num_rows: int) -> Way | None:
        """How this number of rows is computed; None if torch's products are faster."""
        threads = self._kind != GRU_BEFORE and self._num_parts() > 1
        few = self._limits.few_rows if threads or self._is_int8 or not self._packs else 1
        if num_rows <= few:
            return Way.THREADS if threads else Way.IN_PLACE
        return Way.PACKED if self._packs else None

    def __call__(self, inputs: Tensor, states: Sequence[State]) -> tuple[Tensor, list[State]]:
        """Log probabilities (B, V) after the tokens (B,), and the new states of the layers.

        Without an embedding, `inputs` are vectors (B, I); without an output layer, the last
        layer's output (B, H) comes back.
        """
        num_rows = len(inputs)
        way = self.way(num_rows)
        assert way is not None
        if self._entering is not None:
            self._check(inputs)
        inputs = inputs.contiguous()
        chunks = [(0, num_rows, num_rows)]
        if way is Way.PACKED:
            chunks = list(_chunks(num_rows))
        padded = sum(size for _, _, size in chunks)
        before = [[_floats(state.tensor(name)) for name in self._names] for state in states]
        after = [[torch.empty(padded, size) for _ in self._names] for size in self._sizes]
        outputs = [new[0] for new in after]
        if self._kind == SRU:
            outputs = [torch.empty(padded, size) for size in self._sizes]
        result = torch.empty(padded, self._vocab_size) if self._output else outputs[-1]
        for first, last, size in chunks:
            step, layers = self._copies(size if way is Way.PACKED else 0)
            step["num_rows"], step["padded_rows"] = last - first, size
            if self._entering is None:
                step["entering"], step["entering_width"] = inputs.data_ptr(), inputs.shape[1]
            else:
                step["tokens"] = _row(inputs, first)
            step["logits"] = _row(result, first)
            for layer, old, new, output in zip(layers, before, after, outputs, strict=True):
                layer["h"], layer["c"] = _row(old[0], first), _row(old[-1], first)
                layer["new_h"], layer["new_c"] = _row(new[0], first), _row(new[-1], first)
                layer["output"] = _row(output, first)
            self._run(way, step, layers)
        new_states = [
            State({name: new[:num_rows] for name, new in zip(self._names, news, strict=True)})
            for news in after
        ]
        return result[:num_rows], new_states

    def _run(self, way: Way, step: Any, layers: Any) -> None:
        num_parts = self._num_parts() if way is Way.THREADS else 1
        sums = np.empty(2 * num_parts * int(step["padded_rows"][0]))
        step["num_parts"], step["sums"] = num_parts, sums.ctypes.data
        if way is Way.THREADS:
            loop = int8_step_on_threads if self._is_int8 else float_step_on_threads
            loop(num_rows=num_parts, num_parts=num_parts, step=step, layers=layers)
        elif way is Way.PACKED:
            packed_step(step, layers)
        else:
            (int8_step if self._is_int8 else float_step)(step, layers)

    def _num_parts(self) -> int:
        """Threads that are worth waking for a step."""
        if not mkl.available():
            return 1
        return min(torch.get_num_threads(), self._num_bytes // self._limits.shared_bytes + 1)

    def _check(self, tokens_B: Tensor) -> None:
        assert self._entering is not None
        tokens = tokens_B.tolist()
        if min(tokens) < 0 or max(tokens) >= len(self._entering):
            raise IndexError("a token is not in the vocabulary")

    def _first_rows(self, embedding_VE: Tensor | None) -> tuple[Tensor | None, bool]:
        """What is looked up per token, and whether it is W x + b of the first layer."""
        if embedding_VE is None:
            return None, False
        vocab_size, width = embedding_VE.shape
        # An SRU also reads x itself.
        if self._kind == SRU or vocab_size > self._limits.table_ratio * width:
            return embedding_VE.detach().contiguous(), False
        first = self._cells[0]
        return torch.addmm(first.bias, embedding_VE, first.input_weight.t()).detach(), True

    def _layer(self, cell: Cell) -> dict[str, int]:
        given = cell.int8 or (None, None)
        W, w_scale = self._matrix(cell.input_weight, given[0])
        U, u_scale = self._matrix(cell.recurrent_weight, given[1])
        inner = cell.recurrent_bias if isinstance(cell, GRUCell) else None
        return {
            "input_size": cell.input_size,
            "hidden_size": cell.hidden_size,
            "num_gates": len(cell.bias) // cell.hidden_size,
            "W": W,
            "w_scale": w_scale,
            "U": U,
            "u_scale": u_scale,
            "bias": self._at(cell.bias),
            "inner_bias": self._at(torch.zeros(cell.hidden_size) if inner is None else inner),
        }

    def _matrix(self, weight: Tensor, int8: Any) -> tuple[int, int]:
        """The addresses of a matrix and of its scales."""
        if self._is_int8:
            return self._at(torch.from_numpy(int8.weights)), self._at(torch.from_numpy(int8.scales))
        return self._at(weight), self._at(torch.ones(len(weight)))

    def _at(self, tensor: Tensor) -> int:
        tensor = tensor.detach().contiguous()
        self._kept.append(tensor)
        return tensor.data_ptr()

    def _copies(self, chunk_size: int) -> tuple[Any, Any]:
        """Copies of the records, with packed weights for chunks of `chunk_size` rows, if any."""
        if not chunk_size:
            return self._step.copy(), self._layers.copy()
        if chunk_size not in self._packed:
            self._packed[chunk_size] = self._pack(chunk_size)
        step, layers = self._packed[chunk_size]
        return step.copy(), layers.copy()

    def _pack(self, num_rows: int) -> tuple[Any, Any]:
        step, layers = self._step.copy(), self._layers.copy()
        for i, (layer, cell) in enumerate(zip(layers, self._cells, strict=True)):
            if i or not step["is_projected"][0]:
                layer["W"] = self._at(_packed_weight(cell.input_weight, num_rows))
            if not isinstance(cell, ScanCell):
                layer["U"] = self._at(_packed_weight(cell.recurrent_weight, num_rows))
        if self._output:
            step["V"] = self._at(_packed_weight(self._output.weight_VH, num_rows))
        return step, layers


def _records(of: Records, rows: Sequence[dict[str, int]]) -> Any:
    """An array of records; what is not named is 0."""
    names = of.dtype.names
    return np.array([tuple(row.get(name, 0) for name in names) for row in rows], of.dtype)


def _chunks(num_rows: int) -> Iterator[tuple[int, int, int]]:
    """First row, row past the last and size of each chunk; only the last one can be padded."""
    small, large = CHUNK_SIZES
    first = 0
    while first < num_rows:
        size = large if num_rows - first > large - small else small
        yield first, min(num_rows, first + size), size
        first += size


def _packed_weight(weight: Tensor, num_rows: int) -> Tensor:
    """`weight` (N, K) for products x weight' with `num_rows` rows of x."""
    outer, inner = weight.shape
    room = torch.empty(mkl.packed_size(num_rows, outer, inner) + 16)
    room = room[-room.data_ptr() % 64 // 4 :]
    mkl.pack(weight.detach().contiguous(), num_rows, room)
    return room


def _floats(tensor: Tensor) -> Tensor:
    return tensor.detach().float().contiguous()


def _row(tensor: Tensor, row: int) -> int:
    """The address of a row."""
    return tensor.data_ptr() + row * tensor.stride(0) * tensor.element_size()
