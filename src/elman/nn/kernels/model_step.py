"""One step of a whole model in one compiled call: embedding, layers, output layer, on a CPU.

Calling layer by layer would spend most of a step's time in the interpreter. `ModelStep` collects
the addresses of a model's weights once; each call then runs one compiled loop (`step_loops.py`) in
one of three ways, as the plan says (`planning.py`):

    in place      one thread reads every weight once, for one or a few rows
    in parts      the same on several threads: each takes some units of every layer and some words
                  of the output layer, and they meet after each layer (one core reads memory at a
                  fraction of the rate of all of them)
    packed        many rows, times weights that are packed for oneDNN: each thread takes some units
                  and words, as above, so that its weights stay in its core's cache; or times
                  weights that MKL has packed: in chunks of rows, each on one thread if there are
                  enough, else MKL divides each product

Weights are float32, or int8 with a scale per row (`nn/quantise.py`). If the vocabulary is small,
W x + b of the first layer is looked up per token instead of x. A step can also lack the embedding
or the output layer: `kernels/stream.py` uses that for single layers.

B rows, P rows padded to a chunk, I inputs, H hidden units, G gates times H, V vocabulary.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from elman.nn.cells import Cell, GRUCell, LSTMCell
from elman.nn.kernels import mkl
from elman.nn.kernels.packing import PackedFor, pack
from elman.nn.kernels.planning import KernelLimits, ModelWeights, current_limits, padded_rows
from elman.nn.kernels.products import MKL, ONEDNN
from elman.nn.kernels.step_loops import (
    GRU_AFTER,
    GRU_BEFORE,
    LSTM,
    MINGRU,
    MINLSTM,
    SRU,
    Call,
    Layer,
    LayerStates,
    Model,
    edge,
    float_step,
    float_step_on_threads,
    int8_step,
    int8_step_on_threads,
    packed_step,
    packed_step_on_threads,
    packed_steps,
)
from elman.nn.scan_cells import MinGRUCell, MinLSTMCell, ScanCell, SRUCell
from elman.nn.state import State

CHUNK_SIZES = (16, 64)
"""Rows that are multiplied at once by weights that MKL has packed."""


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
        return None if cell.has_extras or cell.projection_weight is not None else LSTM
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
        kind = kind_of(cells[0]) if cells else LSTM
        assert kind is not None
        self._kind, self._cells, self._output = kind, cells, output
        self._embedding_VE = embedding_VE
        self._num_entries = 0 if embedding_VE is None else len(embedding_VE)
        given = [cell.int8 for cell in cells] + ([output.int8] if output else [])
        self._is_int8 = bool(given) and all(int8 is not None for int8 in given)
        self._is_projected, limits = False, limits or current_limits()
        self._num_threads = limits.num_threads
        if embedding_VE is not None and kind != SRU:  # an SRU also reads x itself
            self._is_projected = self._num_entries <= limits.table_ratio * embedding_VE.shape[1]
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
        self._records: dict[tuple[str, int, int], tuple[Model, ctypes.Array[Layer]]] = {}
        """Records by what multiplies packed weights, rows that they are packed for, and parts."""

    def __call__(
        self, inputs: Tensor, states: Sequence[State], *, num_parts: int = 1, products: str = ""
    ) -> tuple[Tensor, list[State]]:
        """Log probabilities (B, V) after the tokens (B,), and the new states of the layers.

        Without an embedding, `inputs` are vectors (B, I); without an output layer, the last
        layer's output (B, H) comes back. `num_parts` and `products`, by packed weights, are the
        plan's.
        """
        num_rows, inputs = inputs.shape[0], inputs.contiguous()
        if self._num_entries:
            tokens = inputs.tolist()
            if min(tokens) < 0 or max(tokens) >= self._num_entries:
                raise IndexError("a token is not in the vocabulary")
        chunks = [(0, num_rows, num_rows)]
        num_threads = self._num_threads or torch.get_num_threads()
        if products == MKL:
            chunks = list(_chunks(num_rows, num_threads))
        elif products:
            chunks = [(0, num_rows, padded_rows(num_rows))]
        padded = chunks[-1][0] + chunks[-1][2]
        before = [[_floats(state.tensor(name)) for name in self._names] for state in states]
        after = [[torch.empty(padded, size) for _ in self._names] for size in self._sizes]
        outputs = [new[0] for new in after]
        if self._kind == SRU:
            outputs = [torch.empty(padded, size) for size in self._sizes]
        result = torch.empty(padded, self._vocab_size) if self._output else outputs[-1]
        calls, kept = [], []
        for first, last, size in chunks:
            layers = (LayerStates * len(self._sizes))()
            for at, old, new, out in zip(layers, before, after, outputs, strict=True):
                skipped = 4 * first * out.shape[1]
                at.h, at.c = old[0].data_ptr() + skipped, old[-1].data_ptr() + skipped
                at.new_h, at.new_c = new[0].data_ptr() + skipped, new[-1].data_ptr() + skipped
                at.output = out.data_ptr() + skipped
            sums = (ctypes.c_double * (2 * num_parts * size))()
            call = Call(
                num_rows=last - first,
                padded_rows=size,
                num_parts=num_parts,
                inputs=inputs.data_ptr() + 8 * first,
                states=ctypes.addressof(layers),
                logits=result.data_ptr() + 4 * first * self._vocab_size,
                sums=ctypes.addressof(sums),
            )
            model = self._model(products, size if products == MKL else 0, num_parts)
            calls.append((model, call))
            kept.append((layers, sums))
        if products == MKL and 1 < num_threads <= len(calls):
            models, at_calls = (
                torch.tensor([ctypes.addressof(record) for record in records])
                for records in zip(*calls, strict=True)
            )
            packed_steps(num_rows=len(calls), num_parts=num_threads, models=models, calls=at_calls)
        else:
            for model, call in calls:
                self._run(model, call, num_parts, bool(products))
        if padded > num_rows:
            after = [[new[:num_rows] for new in news] for news in after]
            result = result[:num_rows]
        return result, [State(dict(zip(self._names, news, strict=True))) for news in after]

    def prepare(self, num_parts: int) -> None:
        """Pack the weights for steps by oneDNN in so many parts, on no more threads than torch has;
        else the first such step does."""
        self._model(ONEDNN, 0, num_parts)

    def _run(self, model: Model, call: Call, num_parts: int, packed: bool) -> None:
        addresses = {"model": ctypes.addressof(model), "call": ctypes.addressof(call)}
        if num_parts > 1:
            loop = int8_step_on_threads if self._is_int8 else float_step_on_threads
            loop = packed_step_on_threads if packed else loop
            loop(num_rows=num_parts, num_parts=num_parts, num_threads=num_parts, **addresses)
        elif packed:
            packed_step(*addresses.values())
        else:
            (int8_step if self._is_int8 else float_step)(*addresses.values())

    def _model(self, products: str, num_rows: int, num_parts: int) -> Model:
        """The record of the model, its weights packed if there is a name of `products`."""
        if not products:
            num_parts = 1  # divided in the loop
        key = products, num_rows, num_parts
        if (found := self._records.get(key)) is None:
            model, layers = self._own_records()
            if products:
                self._pack(model, layers, *key)
            # Of threads that come here together, the first one's records are everyone's.
            found = self._records.setdefault(key, (model, layers))
        return found[0]

    def _own_records(self) -> tuple[Model, ctypes.Array[Layer]]:
        layers = (Layer * len(self._cells))(*map(self._layer, self._cells))
        model = Model(
            kind=self._kind,
            num_layers=len(self._cells),
            layers=ctypes.addressof(layers),
            num_entries=self._num_entries,
            is_projected=self._is_projected,
            vocab_size=self._vocab_size,
        )
        if self._output:
            model.V, model.v_scale = self._matrix(self._output.weight_VH, self._output.int8)
            model.v_bias = self._at(self._output.bias_V)
            model.width = self._output.weight_VH.shape[1]
        if self._cells:
            model.width = self._cells[0].input_size
        if self._table is not None:
            model.table, model.width = self._at(self._table), self._table.shape[1]
        return model, layers

    @cached_property
    def _table(self) -> Tensor | None:
        """What is looked up for each token: x, or W x + b of the first layer."""
        if self._embedding_VE is None or not self._is_projected:
            return self._embedding_VE
        first = self._cells[0]
        weight = first.input_weight.detach()
        return torch.addmm(first.bias.detach(), self._embedding_VE.detach(), weight.t())

    def _layer(self, cell: Cell) -> Layer:
        given = cell.int8 or (None, None)
        W, w_scale = self._matrix(cell.input_weight, given[0])
        U, u_scale = self._matrix(cell.recurrent_weight, given[1])
        inner = cell.recurrent_bias if isinstance(cell, GRUCell) else None
        return Layer(
            input_size=cell.input_size,
            hidden_size=cell.hidden_size,
            num_gates=len(cell.bias) // cell.hidden_size,
            W=W,
            w_scale=w_scale,
            U=U,
            u_scale=u_scale,
            bias=self._at(cell.bias),
            inner_bias=self._at(torch.zeros(cell.hidden_size) if inner is None else inner),
        )

    def _matrix(self, weight: Tensor, int8: Any) -> tuple[int, int]:
        """The addresses of a matrix and of its scales."""
        if self._is_int8:
            return self._at(torch.from_numpy(int8.weights)), self._at(torch.from_numpy(int8.scales))
        return self._at(weight), self._at(torch.ones(len(weight)))

    def _at(self, tensor: Tensor) -> int:
        tensor = tensor.detach().contiguous()
        self._kept.append(tensor)
        return tensor.data_ptr()

    def _pack(
        self,
        model: Model,
        layers: ctypes.Array[Layer],
        products: str,
        num_rows: int,
        num_parts: int,
    ) -> None:
        """Replace the weights by packed copies, MKL's for products with `num_rows` rows."""
        mkl.bind()  # the loop for one thread calls its functions, too

        def packed(weight: Tensor, num_gates: int = 1) -> int:
            if products == MKL:
                return self._at(torch.tensor([self._at(mkl.packed(weight, num_rows))]))
            gates = weight.detach().view(num_gates, -1, weight.shape[1])
            edges = [edge(gates.shape[1], part, num_parts) for part in range(num_parts + 1)]
            wanted = [
                (PackedFor(gates[:, first:last].flatten(0, 1), transposed=True), num_rows)
                for first, last in pairwise(edges)
            ]
            targets = pack(wanted, products, torch.get_num_threads(), make=torch.empty)
            self._kept += targets
            return self._at(torch.tensor([target.data_ptr() for target in targets]))

        for i, (layer, cell) in enumerate(zip(layers, self._cells, strict=True)):
            if i or not self._is_projected:
                layer.W = packed(cell.input_weight, layer.num_gates)
            if not isinstance(cell, ScanCell):
                layer.U = packed(cell.recurrent_weight, layer.num_gates)
        if self._output:
            model.V = packed(self._output.weight_VH)


def _chunks(num_rows: int, num_threads: int) -> Iterator[tuple[int, int, int]]:
    """First row, row past the last and size of each chunk; only the last one can be padded. They
    are small if that gives every thread one."""
    small, large = CHUNK_SIZES
    if (num_threads - 1) * large >= num_rows > (num_threads - 1) * small:
        large = small
    first = 0
    while first < num_rows:
        size = large if num_rows - first > large - small else small
        yield first, min(num_rows, first + size), size
        first += size


def _floats(tensor: Tensor) -> Tensor:
    if tensor.dtype is torch.float32 and tensor.is_contiguous():
        return tensor
    return tensor.detach().float().contiguous()
