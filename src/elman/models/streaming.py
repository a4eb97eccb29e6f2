"""A recurrent language model's step in one compiled call, for decoding on a CPU.

Layer by layer, most of the time of a step would go to the interpreter between them. `ModelStep`
gathers the weights of a whole model once, and then embedding, layers and output layer are one call.
One stream, or a few with weights of one byte, pass over the parameters' own memory
(`loops.model_step`); more of them are multiplied by packed copies (`together.py`), which are made
anew when a parameter has changed. It serves models of plain parts: a lookup, layers joined plainly
of a cell that has a compiled step, a full softmax. Others step part by part, and so do many streams
of models so large that packed copies would take too much memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from elman.nn.cells import Cell, GRUCell, LSTMCell
from elman.nn.heads.full import Full
from elman.nn.heads.sampled import Sampled
from elman.nn.heads.softmax import Softmax
from elman.nn.inputs import Lookup
from elman.nn.kernels import mkl, stream, together
from elman.nn.kernels.shared_step import SharedStep
from elman.nn.layer import RecurrentLayer
from elman.nn.scan_cells import MinGRUCell, MinLSTMCell, SRUCell
from elman.nn.stack import Stack
from elman.nn.state import State

TABLE_RATIO = 4
"""W x + b of every word may take so many times the memory of W, to be looked up."""

MOST_PACKED = 1 << 28
"""Bytes of the largest model of which copies are packed; there may be two."""


class ModelStep:
    """The weights of a model, ready for compiled steps."""

    def __init__(self, embedding: nn.Embedding, cells: list[Cell], softmax: Softmax) -> None:
        self._embedding, self._cells, self._softmax = embedding, cells, softmax
        self._pointers = self._found()
        self._int8 = [softmax.int8, *(cell.int8 for cell in cells)]
        compiled = stream.loops()
        assert compiled is not None
        self._call = compiled.model_step
        self._kind = _kind(compiled, cells[0])
        matrices = [stream.matrices(cell) for cell in cells]
        self._biases = (
            tuple(stream.array(cell.bias) for cell in cells),
            tuple(stream.inner_bias(cell) for cell in cells),
        )
        output = (*stream.matrix(softmax.weight, softmax.int8), stream.array(softmax.bias))
        self._weights = (
            stream.array(embedding.weight),
            *(tuple(matrix[i] for matrix in matrices) for i in range(4)),
            *self._biases,
            *output,
        )
        self._keys = [str(level) for level in range(len(cells))]
        self._has_cell = isinstance(cells[0], LSTMCell)
        self._shared: SharedStep | None = None
        if SharedStep.serves(self._kind, [output[0], *(W for m in matrices for W in m[::2])]):
            layers = [(*m, *biases) for m, *biases in zip(matrices, *self._biases, strict=True)]
            self._shared = SharedStep(self._kind, self._weights[0], layers, output)
        packs = self._kind in (compiled.LSTM, compiled.GRU_AFTER) and mkl.available()
        packs = packs and sum(4 * p.numel() for p in self._parameters()) <= MOST_PACKED
        few = stream.FEW_ROWS if self._is_int8 or self._shared else 1
        self._most_in_place = few if packs else stream.FEW_ROWS
        """Rows up to this number are multiplied row by row."""
        self._packs = packs
        self._packed: dict[int, Any] = {}
        """By the size of a chunk, what `together.model_step` takes of the weights."""
        self._versions: list[int] = []
        """Those of the parameters when they were packed."""

    @staticmethod
    def of(source: nn.Module, stack: Stack, head: nn.Module) -> ModelStep | None:
        """The compiled step of a model of these parts, where they are plain."""
        cells = [layer.cell for layer in stack.layers if isinstance(layer, RecurrentLayer)]
        plain = (
            isinstance(source, Lookup)
            and isinstance(head, (Full, Sampled))
            and getattr(head.softmax, "ngrams", None) is None
            and stack.config.join == "plain"
            and stack.config.kernel != "reference"
            and all(stream.has_step(cell) for cell in cells)
        )
        if not plain:
            return None
        assert isinstance(source, Lookup)
        assert isinstance(head, (Full, Sampled))
        return ModelStep(source.embedding, cells, head.softmax)

    @property
    def is_current(self) -> bool:
        """Whether the model still keeps its weights where they were found."""
        owners = (self._softmax, *self._cells)
        return self._pointers == self._found() and all(
            owner.int8 is int8 for owner, int8 in zip(owners, self._int8, strict=True)
        )

    def serves(self, num_rows: int) -> bool:
        """Whether so many rows are better done here than part by part."""
        return self._packs or num_rows <= self._most_in_place

    def __call__(self, tokens_B: Tensor, state: State) -> tuple[Tensor, State]:
        """Log probabilities (B, V) after the tokens, and the new state."""
        parts = [state.part(key) for key in self._keys]
        if self._shared is not None and len(tokens_B) <= self._most_in_place:
            return self._share(tokens_B, parts)
        hs = tuple(stream.array(part.tensor("h")) for part in parts)
        new_hs = tuple(map(np.empty_like, hs))
        cs, new_cs = hs, new_hs
        if self._has_cell:
            cs = tuple(stream.array(part.tensor("c")) for part in parts)
            new_cs = tuple(map(np.empty_like, cs))
        tokens = stream.array(tokens_B)
        if len(tokens) > self._most_in_place:
            logprobs_BV = self._together(tokens, (hs, cs, new_hs, new_cs))
        else:
            logprobs_BV = self._call(self._kind, *self._weights, tokens, hs, cs, new_hs, new_cs)
        after: dict[str, Any] = {}
        for key, h, c in zip(self._keys, new_hs, new_cs, strict=True):
            tensors = {"h": torch.from_numpy(h)}
            if self._has_cell:
                tensors["c"] = torch.from_numpy(c)
            after[key] = State(tensors)
        return torch.from_numpy(logprobs_BV), State(after)

    def _share(self, tokens_B: Tensor, parts: list[State]) -> tuple[Tensor, State]:
        """All threads' step."""
        assert self._shared is not None
        names = ("h", "c") if self._has_cell else ("h",)
        states = [[part.tensor(name).float().contiguous() for name in names] for part in parts]
        logprobs_BV, after = self._shared(tokens_B, states)
        new = [State(dict(zip(names, tensors, strict=True))) for tensors in after]
        return logprobs_BV, State(dict(zip(self._keys, new, strict=True)))

    def _together(self, tokens: Any, states: tuple[tuple[Any, ...], ...]) -> Any:
        """Log probabilities after many tokens; the new ones of `states` are filled in."""
        versions = [0 if p.is_inference() else p._version for p in self._parameters()]
        if versions != self._versions:
            self._packed, self._versions = {}, versions
        chunks = list(together.chunks(len(tokens)))
        num_rows = sum(size for _, _, size in chunks)
        logprobs = np.empty((num_rows, len(self._softmax.bias)), np.float32)
        for first, last, size in chunks:
            if size not in self._packed:
                self._packed[size] = self._pack(size)
            together.model_step(
                self._kind,
                *self._packed[size],
                tokens[first:last],
                *(tuple(layer[first:last] for layer in part) for part in states),
                logprobs[first : first + size],
            )
        return logprobs[: len(tokens)]

    def _pack(self, num_rows: int) -> tuple[Any, ...]:
        """The weights as `together.model_step` takes them, for chunks of so many rows."""
        cells, first = self._cells, self._cells[0]
        entering = self._embedding.weight.detach()
        is_table = len(entering) <= TABLE_RATIO * entering.shape[1]
        Ws = [together.packed(cell.input_weight, num_rows) for cell in cells[is_table:]]
        if is_table:
            entering = torch.addmm(first.bias, entering, first.input_weight.t()).detach()
            Ws.insert(0, np.empty(0, np.float32))
        return (
            stream.array(entering),
            is_table,
            tuple(Ws),
            tuple(together.packed(cell.recurrent_weight, num_rows) for cell in cells),
            *self._biases,
            together.packed(self._softmax.weight, num_rows),
            stream.array(self._softmax.bias),
        )

    @property
    def _is_int8(self) -> bool:
        return any(int8 is not None for int8 in self._int8)

    def _found(self) -> list[int]:
        return [parameter.data_ptr() for parameter in self._parameters()]

    def _parameters(self) -> list[Tensor]:
        """Those that the model has now: they may have been replaced."""
        owners = (self._embedding, self._softmax, *self._cells)
        return [p for owner in owners for p in owner._parameters.values() if p is not None]


def _kind(compiled: Any, cell: Cell) -> int:
    """The number of a cell's kind in the compiled step."""
    if isinstance(cell, GRUCell):
        name = "GRU_BEFORE" if cell.recurrent_bias is None else "GRU_AFTER"
    else:
        names: dict[type[Cell], str] = {
            LSTMCell: "LSTM",
            MinGRUCell: "MINGRU",
            MinLSTMCell: "MINLSTM",
            SRUCell: "SRU",
        }
        name = names[type(cell)]
    return int(getattr(compiled, name))
