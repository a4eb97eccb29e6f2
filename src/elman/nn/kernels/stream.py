"""Decoding of one stream, or of a few: steps compiled by numba, for kernels that run on a CPU.

One step of a small batch costs a pass over the weights and, in torch, the time of a dozen calls and
of packing the weights anew. Here it is one call per layer and one for the output layer
(`kernels/loops.py`), on weights of four bytes or of one (`nn/quantise.py`); matrices too large for
a core's cache are multiplied by all threads (`kernels/products.py`). Where numba is not
installed, or the numbers are not float32, or gradients are wanted, kernels step as they would
otherwise.

B rows, I inputs, H hidden units, P outputs, V vocabulary.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from elman.nn.cells import Cell, GRUCell, LSTMCell
from elman.nn.kernels import products
from elman.nn.kernels.products import shared_product
from elman.nn.scan_cells import MinGRUCell, MinLSTMCell, ScanCell, SRUCell
from elman.nn.shapes import Float, Int
from elman.nn.state import State

FEW_ROWS = 4
"""Streams that are read together row by row; with more of them a product of matrices is faster."""


@lru_cache(None)
def loops() -> ModuleType | None:
    """The compiled loops, or None where numba is missing."""
    if find_spec("numba") is None:
        return None
    from elman.nn.kernels import loops as compiled_loops

    return compiled_loops


def is_stream(rows: Tensor, dtype: torch.dtype = torch.float32) -> bool:
    """Whether `rows` are few and plain enough for the compiled steps."""
    return len(rows) <= FEW_ROWS and is_plain(rows, dtype)


def is_plain(rows: Tensor, dtype: torch.dtype = torch.float32) -> bool:
    """Whether compiled code can have `rows`: their numbers, on a CPU, without gradients."""
    return (
        rows.dtype == dtype
        and rows.device.type == "cpu"
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and loops() is not None
    )


def serves(cell: Cell, inputs_BI: Float[Tensor, "B I"]) -> bool:
    """LSTM and GRU without extras, and the scan cells, for a few rows of float32."""
    return is_stream(inputs_BI) and has_step(cell)


def has_step(cell: Cell) -> bool:
    """Whether there is a compiled step for this cell and its numbers."""
    if cell.layer_norm or cell.bias.dtype != torch.float32 or cell.bias.device.type != "cpu":
        return False
    plain = type(cell) is LSTMCell and not cell.has_extras
    return plain or type(cell) in (GRUCell, MinGRUCell, MinLSTMCell, SRUCell)


def step(
    cell: Cell, inputs_BI: Float[Tensor, "B I"], state: State
) -> tuple[Float[Tensor, "B P"], State]:
    """One step of time in one compiled call."""
    compiled = loops()
    assert compiled is not None
    W, w_scale, U, u_scale = matrices(cell)
    bias, x, h = array(cell.bias), array(inputs_BI), array(state.tensor("h"))
    if isinstance(cell, ScanCell):
        new_output, new_h = _scan_step(compiled, cell)(W, w_scale, bias, x, h)
        return torch.from_numpy(new_output), State({"h": torch.from_numpy(new_h)})
    if is_shared(cell):
        return _shared_step(compiled, cell, x, state)
    if isinstance(cell, GRUCell):
        after = cell.recurrent_bias is not None
        new = compiled.gru_step(W, w_scale, U, u_scale, bias, inner_bias(cell), x, h, after)
        return torch.from_numpy(new), State({"h": torch.from_numpy(new)})
    new_h, new_c = map(
        torch.from_numpy,
        compiled.lstm_step(W, w_scale, U, u_scale, bias, x, h, array(state.tensor("c"))),
    )
    return new_h, State({"h": new_h, "c": new_c})


def is_shared(cell: Cell) -> bool:
    """Whether the step is better done by several threads, product by product."""
    if isinstance(cell, ScanCell) or (isinstance(cell, GRUCell) and cell.recurrent_bias is None):
        return False
    W, _, U, _ = matrices(cell)
    return products.is_shared(W.nbytes) and products.is_shared(U.nbytes)


def _shared_step(compiled: ModuleType, cell: Cell, x: Any, state: State) -> tuple[Tensor, State]:
    W, w_scale, U, u_scale = matrices(cell)
    h = array(state.tensor("h"))
    gates = shared_product(W, w_scale, array(cell.bias), x)
    if isinstance(cell, GRUCell):
        shift = np.zeros(len(U), np.float32)
        shift[-cell.hidden_size :] = inner_bias(cell)
        new = compiled.gru_after_gates(gates, shared_product(U, u_scale, shift, h), h)
        return torch.from_numpy(new), State({"h": torch.from_numpy(new)})
    gates = shared_product(U, u_scale, gates, h)
    new_h, new_c = map(torch.from_numpy, compiled.lstm_gates(gates, array(state.tensor("c"))))
    return new_h, State({"h": new_h, "c": new_c})


def log_softmax(
    weight_VH: Float[Tensor, "V H"],
    int8: Any,
    bias_V: Float[Tensor, "V"],
    hidden_BH: Float[Tensor, "B H"],
) -> Float[Tensor, "B V"]:
    """log softmax(weight h + bias) for a few vectors, in one compiled call."""
    compiled = loops()
    assert compiled is not None
    logits = shared_product(*matrix(weight_VH, int8), array(bias_V), array(hidden_BH))
    return torch.from_numpy(compiled.normalise(logits))


def _scan_step(compiled: ModuleType, cell: ScanCell) -> Any:
    if isinstance(cell, MinGRUCell):
        return compiled.mingru_step
    return compiled.minlstm_step if isinstance(cell, MinLSTMCell) else compiled.sru_step


def matrices(cell: Cell) -> tuple[Any, Any, Any, Any]:
    """W, its scales, U and its scales, as the loops take them."""
    input_int8, recurrent_int8 = cell.int8 or (None, None)
    return (
        *matrix(cell.input_weight, input_int8),
        *matrix(cell.recurrent_weight, recurrent_int8),
    )


def inner_bias(cell: Cell) -> Any:
    """The GRU's bias inside the reset, zeros where there is none."""
    inner = cell.recurrent_bias if isinstance(cell, GRUCell) else None
    return np.zeros(cell.hidden_size, np.float32) if inner is None else array(inner)


def matrix(weight: Tensor, int8: Any) -> tuple[Any, Any]:
    """A matrix and its scales, as the loops take them."""
    return (array(weight), _ones(len(weight))) if int8 is None else (int8.weights, int8.scales)


@lru_cache(None)
def _ones(size: int) -> Any:
    return np.ones(size, np.float32)


def array(tensor: Tensor) -> Any:
    """A tensor's numbers, shared; copied only where they do not lie row by row."""
    return tensor.detach().contiguous().numpy()


def draw(scores_BV: Float[Tensor, "B V"], draws: list[float]) -> Int[Tensor, "B"]:
    """A token per row from the softmax of its scores, given numbers in (0, 1]; -1 for none."""
    compiled = loops()
    assert compiled is not None
    return torch.from_numpy(compiled.draw_tokens(array(scores_BV), np.array(draws)))
