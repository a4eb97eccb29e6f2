"""A recurrent language model's step in one compiled call, for decoding of a few streams on a CPU.

Layer by layer, most of the time of a step would go to the interpreter between them. `ModelStep`
gathers the weights of a whole model once, as arrays that share the parameters' memory, and then
embedding, layers and output layer are one call (`loops.model_step`). It serves models of plain
parts: a lookup, layers joined plainly of a cell that has a compiled step, a full softmax. Others
step part by part, and so do models so large that several threads had better share each product.
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
from elman.nn.kernels import stream
from elman.nn.layer import RecurrentLayer
from elman.nn.scan_cells import MinGRUCell, MinLSTMCell, SRUCell
from elman.nn.stack import Stack
from elman.nn.state import State


class ModelStep:
    """The weights of a model, ready for compiled steps."""

    def __init__(self, embedding: nn.Embedding, cells: list[Cell], softmax: Softmax) -> None:
        self._parameters = [
            embedding.weight,
            softmax.weight,
            softmax.bias,
            *(parameter for cell in cells for parameter in cell.parameters()),
        ]
        self._pointers = self._found()
        self._int8 = [softmax.int8, *(cell.int8 for cell in cells)]
        self._owners = [softmax, *cells]
        compiled = stream.loops()
        assert compiled is not None
        self._call = compiled.model_step
        matrices = [stream.matrices(cell) for cell in cells]
        self._weights = (
            _kind(compiled, cells[0]),
            stream.array(embedding.weight),
            *(tuple(matrix[i] for matrix in matrices) for i in range(4)),
            tuple(stream.array(cell.bias) for cell in cells),
            tuple(stream.inner_bias(cell) for cell in cells),
            *stream.matrix(softmax.weight, softmax.int8),
            stream.array(softmax.bias),
        )
        self._keys = [str(level) for level in range(len(cells))]
        self._has_cell = isinstance(cells[0], LSTMCell)

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
            and not any(stream.is_shared(cell) for cell in cells)
        )
        if not plain:
            return None
        assert isinstance(source, Lookup)
        assert isinstance(head, (Full, Sampled))
        return ModelStep(source.embedding, cells, head.softmax)

    @property
    def is_current(self) -> bool:
        """Whether the model still keeps its weights where they were found."""
        return self._pointers == self._found() and all(
            owner.int8 is int8 for owner, int8 in zip(self._owners, self._int8, strict=True)
        )

    def __call__(self, tokens_B: Tensor, state: State) -> tuple[Tensor, State]:
        """Log probabilities (B, V) after the tokens, and the new state."""
        parts = [state.part(key) for key in self._keys]
        hs = tuple(stream.array(part.tensor("h")) for part in parts)
        new_hs = tuple(map(np.empty_like, hs))
        cs, new_cs = hs, new_hs
        if self._has_cell:
            cs = tuple(stream.array(part.tensor("c")) for part in parts)
            new_cs = tuple(map(np.empty_like, cs))
        tokens = stream.array(tokens_B)
        logprobs_BV = self._call(*self._weights, tokens, hs, cs, new_hs, new_cs)
        after: dict[str, Any] = {}
        for key, h, c in zip(self._keys, new_hs, new_cs, strict=True):
            tensors = {"h": torch.from_numpy(h)}
            if self._has_cell:
                tensors["c"] = torch.from_numpy(c)
            after[key] = State(tensors)
        return torch.from_numpy(logprobs_BV), State(after)

    def _found(self) -> list[int]:
        return [parameter.data_ptr() for parameter in self._parameters]


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
