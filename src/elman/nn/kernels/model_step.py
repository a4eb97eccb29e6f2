"""One step of a whole model in one compiled call: embedding, layers, output layer, on a CPU.

Calling layer by layer would spend most of a step's time in the interpreter. `ModelStep` collects
the addresses of a model's weights once; each call then runs one compiled loop (`step_loops.py`) in
one of three ways, as the plan says (`planning.py`):

    in place      one thread reads every weight once, for one or a few rows
    in parts      the same on several threads: each takes some units of every layer and some words
                  of the output layer, and they meet after each layer (one core reads memory at a
                  fraction of the rate of all of them)
    packed        many rows, in chunks, times weights that MKL has packed for that number of rows

Weights are float32, or int8 with a scale per row (`nn/quantise.py`). If the vocabulary is small,
W x + b of the first layer is looked up per token instead of x. A step can also lack the embedding
or the output layer: `kernels/stream.py` uses that for single layers.

B rows, P rows padded to a chunk, I inputs, H hidden units, G gates times H, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from elman.nn.cells import Cell, GRUCell, LSTMCell
from elman.nn.kernels import mkl
from elman.nn.kernels.planning import KernelLimits, ModelWeights
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
    scans: dict[type[Cell], int] = {MinGRUCell: MINGRU, MinLSTMCell: MINLSTM, SRUCell: SRU}
    return scans.get(type(cell))


class ModelStep:
    """The weights of cells of one kind, with or without an embedding and an output layer."""

    def __init__(
        self,
        cells: Sequence[Cell],
        embedding_VE: Tensor | None = None,
        output: Output | None = None,
        limits: KernelLimits | None = None,
    ) -> None:
        kinds = {kind_of(cell) for cell in cells}
        assert len(kinds) <= 1
        kind = kinds.pop() if kinds else LSTM
        assert kind is not None
        self._kind, self._cells, self._output = kind, cells, output
        self._embedding_VE = embedding_VE
        given = [cell.int8 for cell in cells] + ([output.int8] if output else [])
        self._is_int8 = bool(given) and all(int8 is not None for int8 in given)
        self._is_projected = False
        if embedding_VE is not None and kind != SRU:  # an SRU also reads x itself
            ratio = (limits or KernelLimits()).table_ratio
            self._is_projected = len(embedding_VE) <= ratio * embedding_VE.shape[1]
        weights: list[Tensor] = [cell.input_weight for cell in cells[self._is_projected :]]
        weights += [cell.recurrent_weight for cell in cells]
        weights += [output.weight_VH] if output else []
        num_weights = sum(weight.numel() for weight in weights)
        self.weights = ModelWeights(num_weights * (1 if self._is_int8 else 4), 4 * num_weights)
        self._sizes = [cell.hidden_size for cell in cells]
        self._names = ("h", "c") if kind == LSTM else ("h",)
        self._vocab_size = len(output.bias_V) if output else 0
        self._kept: list[Tensor] = []
        """Tensors whose addresses are in the records."""
        self._records: dict[int, tuple[Any, Any]] = {}
        """The step's and the layers' records by chunk size; 0 for weights that are not packed."""

    def __call__(
        self, inputs: Tensor, states: Sequence[State], *, num_parts: int = 1, packed: bool = False
    ) -> tuple[Tensor, list[State]]:
        """Log probabilities (B, V) after the tokens (B,), and the new states of the layers.

        Without an embedding, `inputs` are vectors (B, I); without an output layer, the last
        layer's output (B, H) comes back. `num_parts` and `packed` are the plan's.
        """
        num_rows, inputs = len(inputs), inputs.contiguous()
        if self._embedding_VE is not None:
            tokens = inputs.tolist()
            if min(tokens) < 0 or max(tokens) >= len(self._embedding_VE):
                raise IndexError("a token is not in the vocabulary")
        chunks = list(_chunks(num_rows)) if packed else [(0, num_rows, num_rows)]
        padded = sum(size for _, _, size in chunks)
        before = [[_floats(state.tensor(name)) for name in self._names] for state in states]
        after = [[torch.empty(padded, size) for _ in self._names] for size in self._sizes]
        outputs = [new[0] for new in after]
        if self._kind == SRU:
            outputs = [torch.empty(padded, size) for size in self._sizes]
        result = torch.empty(padded, self._vocab_size) if self._output else outputs[-1]
        for first, last, size in chunks:
            step, layers = self._copied_records(size if packed else 0)
            step["num_rows"], step["padded_rows"] = last - first, size
            if self._embedding_VE is None:
                step["entering"], step["entering_width"] = inputs.data_ptr(), inputs.shape[1]
            else:
                step["tokens"] = _row(inputs, first)
            step["logits"] = _row(result, first)
            for layer, old, new, output in zip(layers, before, after, outputs, strict=True):
                layer["h"], layer["c"] = _row(old[0], first), _row(old[-1], first)
                layer["new_h"], layer["new_c"] = _row(new[0], first), _row(new[-1], first)
                layer["output"] = _row(output, first)
            self._run(step, layers, num_parts, packed)
        new_states = [
            State({name: new[:num_rows] for name, new in zip(self._names, news, strict=True)})
            for news in after
        ]
        return result[:num_rows], new_states

    def _run(self, step: Any, layers: Any, num_parts: int, packed: bool) -> None:
        sums = np.empty(2 * num_parts * int(step["padded_rows"][0]))
        step["num_parts"], step["sums"] = num_parts, sums.ctypes.data
        if num_parts > 1:
            loop = int8_step_on_threads if self._is_int8 else float_step_on_threads
            sizes = {"num_rows": num_parts, "num_parts": num_parts, "num_threads": num_parts}
            loop(**sizes, step=step, layers=layers)
        elif packed:
            packed_step(step, layers)
        else:
            (int8_step if self._is_int8 else float_step)(step, layers)

    def _copied_records(self, chunk_size: int) -> tuple[Any, Any]:
        if 0 not in self._records:
            self._records[0] = self._own_records()
        if chunk_size not in self._records:
            self._records[chunk_size] = self._pack(*self._copied_records(0), chunk_size)
        step, layers = self._records[chunk_size]
        return step.copy(), layers.copy()

    def _own_records(self) -> tuple[Any, Any]:
        """The records, but for what changes from step to step."""
        step = {
            "kind": self._kind,
            "num_layers": len(self._cells),
            "is_projected": self._is_projected,
            "vocab_size": self._vocab_size,
        }
        if self._embedding_VE is not None:
            table = self._embedding_VE.detach()
            if self._is_projected:
                first = self._cells[0]
                table = torch.addmm(first.bias, table, first.input_weight.t())
            step |= {
                "entering": self._at(table),
                "num_entries": len(table),
                "entering_width": table.shape[1],
            }
        if self._output:
            V, v_scale = self._matrix(self._output.weight_VH, self._output.int8)
            step |= {"V": V, "v_scale": v_scale, "v_bias": self._at(self._output.bias_V)}
        return _records(STEP, [step]), _records(LAYER, [self._layer(cell) for cell in self._cells])

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

    def _pack(self, step: Any, layers: Any, num_rows: int) -> tuple[Any, Any]:
        """Replace the weights by copies that are packed for products with `num_rows` rows."""
        for i, (layer, cell) in enumerate(zip(layers, self._cells, strict=True)):
            if i or not self._is_projected:
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
