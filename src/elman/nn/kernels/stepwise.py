"""LSTMs with extras that other kernels lack: mogrifiers, a capped input gate, state dropout.

What a step reads depends on the step before it, so steps are computed one after the other, as by
the reference, but with less work for each. Matrices are cast once per sequence, the gradient of
each is one product over all steps instead of a sum of one per step, and what is elementwise takes
one launch with Triton (`stepwise_loops.py`): a third of the launches, which are what such steps
spend their time on. On a CPU, products with one row are by `row_products.py`.

Within `unmultiplied`, gradients of matrices stay what they are products of: dynamic evaluation on a
CPU never writes them to memory.

B batch, T time steps, I inputs, P outputs (H here: no projection), G gates times H.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from elman.nn.cells import Cell, LSTMCell
from elman.nn.cells import step as step  # `as`: a part of this module, which is a `Kernel`
from elman.nn.kernels import row_products
from elman.nn.kernels.persistent_launch import runs_on
from elman.nn.shapes import Float, Int
from elman.nn.state import State


class Factors(NamedTuple):
    """A matrix's gradient is slopes^T vectors, that of its bias the sum of the slopes."""

    slopes: Float[Tensor, "N G"]
    vectors: Float[Tensor, "N I"]
    bias: Tensor | None
    """The parameter."""


_unmultiplied: ContextVar[dict[Tensor, Factors] | None] = ContextVar("unmultiplied", default=None)


@contextmanager
def unmultiplied() -> Iterator[dict[Tensor, Factors]]:
    """What is run within has no gradients of matrices and biases; the backward pass leaves their
    factors in the dictionary, by matrix."""
    token = _unmultiplied.set({})
    try:
        found = _unmultiplied.get()
        assert found is not None
        yield found
    finally:
        _unmultiplied.reset(token)


def serves(cell: Cell) -> bool:
    """Whether this kernel computes such a cell."""
    return (
        type(cell) is LSTMCell
        and not (cell.layer_norm or cell.cell_clip or cell.projection_clip)
        and cell.peephole_weight is None
        and cell.projection_weight is None
    )


def run(
    cell: Cell,
    inputs_BTI: Float[Tensor, "B T I"],
    state: State,
    lengths_B: Int[Tensor, "B"] | None,
    recurrent_weight: Float[Tensor, "G P"],
    plan: object,
    mask_BP: Float[Tensor, "B P"] | None = None,
) -> tuple[Float[Tensor, "B T P"], State]:
    """The whole sequence; `mask_BP` multiplies h before each step reads it (state dropout)."""
    assert isinstance(cell, LSTMCell)
    device = inputs_BTI.device
    is_autocast = torch.is_autocast_enabled(device.type)
    dtype = torch.get_autocast_dtype(device.type) if is_autocast else inputs_BTI.dtype
    with torch.autocast(device.type, enabled=False) if is_autocast else nullcontext():
        steps = _Steps(cell, recurrent_weight, dtype, mask_BP)
        x_TBI = inputs_BTI.transpose(0, 1).to(dtype)
        entering = x_TBI if cell.mogrifiers else steps.W(x_TBI)
        h_BH, c_BH = state.tensor("h").to(dtype), state.tensor("c").float()
        if dtype == torch.float64:
            c_BH = state.tensor("c")
        outputs = []
        for time, entering_BX in enumerate(entering.unbind()):
            shown_BH, new_BH = steps(entering_BX, h_BH, c_BH)
            if lengths_B is None:
                h_BH, c_BH = shown_BH, new_BH
            else:
                real_B1 = (time < lengths_B.to(device)).unsqueeze(1)
                h_BH = torch.where(real_B1, shown_BH, h_BH)
                c_BH = torch.where(real_B1, new_BH, c_BH)
                shown_BH = torch.where(real_B1, shown_BH, 0)
            outputs.append(shown_BH)
        after = {"h": h_BH.to(state.tensor("h").dtype), "c": c_BH.to(state.tensor("c").dtype)}
        return torch.stack(outputs, dim=1), State(after)


class _Steps:
    """A step, with the matrices cast."""

    def __init__(
        self, cell: LSTMCell, recurrent_weight: Tensor, dtype: torch.dtype, mask_BP: Tensor | None
    ) -> None:
        self.W = _Matrix(cell.input_weight, dtype, cell.bias)
        self.U = _Matrix(recurrent_weight, dtype)
        self.mogrifiers = [
            [_Matrix(weight, dtype) for weight in module.parameters()] for module in cell.mogrifiers
        ]
        self.cap_input = cell.cap_input
        self.mask_BP = None if mask_BP is None else mask_BP.to(dtype)

    def __call__(self, entering_BX: Tensor, h_BH: Tensor, c_BH: Tensor) -> tuple[Tensor, Tensor]:
        if self.mask_BP is not None:
            h_BH = h_BH * self.mask_BP
        x_BX = entering_BX
        for number, matrices in enumerate(self.mogrifiers, start=1):
            scores = h_BH if number % 2 else x_BX
            for matrix in matrices:
                scores = matrix(scores)
            if number % 2:
                x_BX = _gated(scores, x_BX)
            else:
                h_BH = _gated(scores, h_BH)
        if self.mogrifiers:
            x_BX = self.W(x_BX)
        gates_BG = x_BX + self.U(h_BH)
        shown_BH, new_BH = _Cell.apply(gates_BG, c_BH, self.cap_input)  # type: ignore[no-untyped-call]
        return shown_BH, new_BH


class _Matrix:
    """A matrix that multiplies vectors in many steps, and gets its gradient from all at once; with
    a bias that is added to the products."""

    def __init__(self, weight: Tensor, dtype: torch.dtype, bias: Tensor | None = None) -> None:
        self.uses: list[tuple[Tensor, Tensor]] = []
        self.parameters = (weight, bias)
        self.unmultiplied = _unmultiplied.get()
        self.bias = None if bias is None else bias.detach().to(dtype)
        self.weight: Tensor = _Cast.apply(weight, bias, self, dtype)  # type: ignore[no-untyped-call]

    def __call__(self, vectors: Tensor) -> Tensor:
        found: Tensor = _Product.apply(vectors, self.weight, self)  # type: ignore[no-untyped-call]
        return found


class _Cast(torch.autograd.Function):
    """Casts a matrix; its backward pass, which comes after those of all products with it, makes the
    gradient from what they have left."""

    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, bias: Tensor | None, owner: _Matrix, dtype: torch.dtype
    ) -> Tensor:
        ctx.owner, ctx.dtype = owner, weight.dtype
        ctx.set_materialize_grads(False)
        return weight.detach().to(dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, nothing: None) -> tuple[Tensor | None, Tensor | None, None, None]:
        uses, ctx.owner.uses = ctx.owner.uses, []
        if not uses:
            return None, None, None, None
        slopes, vectors = (torch.cat(part) for part in zip(*uses, strict=True))
        if ctx.owner.unmultiplied is not None:
            weight, bias = ctx.owner.parameters
            ctx.owner.unmultiplied[weight] = Factors(slopes, vectors, bias)
            return None, None, None, None
        to_weight, to_bias = (slopes.t() @ vectors).to(ctx.dtype), None
        if ctx.owner.bias is not None:
            # A sum over rows as a product, as in `persistent.py`.
            to_bias = (slopes.new_ones(1, len(slopes)) @ slopes)[0].to(ctx.dtype)
        return to_weight, to_bias, None, None


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor, weight: Tensor, owner: _Matrix) -> Tensor:
        ctx.owner = owner
        ctx.save_for_backward(vectors, weight)
        if row_products.serves(vectors, weight):
            product = row_products.times(weight, vectors)
            return product if owner.bias is None else product.add_(owner.bias)
        return F.linear(vectors, weight, owner.bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor | None, None, None]:
        vectors, weight = ctx.saved_tensors
        if ctx.needs_input_grad[1]:
            ctx.owner.uses.append((slopes.flatten(0, -2), vectors.flatten(0, -2)))
        if not ctx.needs_input_grad[0]:
            return None, None, None
        if row_products.serves(slopes, weight):
            return row_products.transposed_times(weight, slopes), None, None
        return slopes @ weight, None, None


def _gated(scores: Tensor, vectors: Tensor) -> Tensor:
    found: Tensor = _Gated.apply(scores, vectors)  # type: ignore[no-untyped-call]
    return found


class _Gated(torch.autograd.Function):
    """2 sigmoid(scores) * vectors."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, vectors: Tensor) -> Tensor:
        if _is_fused(scores):
            from elman.nn.kernels import stepwise_loops as loops

            vectors = vectors.contiguous()
            result, gates = loops.gated(scores, vectors)
        else:
            gates = torch.sigmoid(scores)
            result = 2 * gates * vectors
        ctx.save_for_backward(gates, vectors)
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor, Tensor]:
        gates, vectors = ctx.saved_tensors
        if _is_fused(gates):
            from elman.nn.kernels import stepwise_loops as loops

            return loops.gated_slopes(slopes.contiguous(), gates, vectors)
        to_vectors = 2 * gates * slopes
        return to_vectors * vectors * (1 - gates), to_vectors


class _Cell(torch.autograd.Function):
    """From the sums of the gates and the old cell to the output and the new cell."""

    @staticmethod
    def forward(ctx: Any, gates_BG: Tensor, c_BH: Tensor, cap_input: bool) -> tuple[Tensor, Tensor]:
        ctx.cap_input = cap_input
        ctx.set_materialize_grads(False)
        if _is_fused(gates_BG):
            from elman.nn.kernels import stepwise_loops as loops

            c_BH = c_BH.contiguous()
            h_BH, new_BH, values_BG = loops.cell(gates_BG, c_BH, cap_input)
        else:
            i, f, g, o = gates_BG.to(c_BH.dtype).chunk(4, dim=1)
            i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
            new_BH = f * c_BH + (torch.minimum(i, 1 - f) if cap_input else i) * g
            h_BH = (o * torch.tanh(new_BH)).to(gates_BG.dtype)
            values_BG = torch.cat([i, f, g, o], dim=1)
        ctx.save_for_backward(values_BG, c_BH, new_BH)
        ctx.dtype = gates_BG.dtype
        return h_BH, new_BH

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: Any, to_h_BH: Tensor | None, to_new_BH: Tensor | None
    ) -> tuple[Tensor, Tensor, None]:
        values_BG, c_BH, new_BH = ctx.saved_tensors
        to_h_BH = torch.zeros_like(new_BH, dtype=ctx.dtype) if to_h_BH is None else to_h_BH
        to_new_BH = torch.zeros_like(new_BH) if to_new_BH is None else to_new_BH
        if _is_fused(values_BG):
            from elman.nn.kernels import stepwise_loops as loops

            to_gates_BG, to_c_BH = loops.cell_slopes(
                to_h_BH.contiguous(), to_new_BH.contiguous(), values_BG, c_BH, new_BH, ctx.cap_input
            )
            return to_gates_BG, to_c_BH, None
        i, f, g, o = values_BG.chunk(4, dim=1)
        to_h_BH = to_h_BH.to(new_BH.dtype)
        shown = torch.tanh(new_BH)
        to_c = to_new_BH + to_h_BH * o * (1 - shown * shown)
        is_capped = i > 1 - f if ctx.cap_input else torch.zeros_like(i, dtype=torch.bool)
        used = torch.where(is_capped, 1 - f, i)
        to_used = to_c * g
        to_f = to_c * c_BH - torch.where(is_capped, to_used, 0)
        to_i = torch.where(is_capped, 0, to_used)
        parts = [to_i * i * (1 - i), to_f * f * (1 - f)]
        parts += [to_c * used * (1 - g * g), to_h_BH * shown * o * (1 - o)]
        return torch.cat(parts, dim=1).to(ctx.dtype), to_c * f, None


def _is_fused(tensor: Tensor) -> bool:
    return tensor.dtype != torch.float64 and runs_on(tensor.device)
