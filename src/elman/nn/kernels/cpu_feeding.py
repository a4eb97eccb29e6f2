"""A decoder with attention and input feeding on a CPU: all steps in one compiled loop.

The equations are those of `feeding.py`, which decides by `plan` whether to come here. Each thread
takes some rows of the batch through all steps (`cpu_feeding_loops.py`). Products over all steps
(W x, and the gradients of the matrices, of the keys and of the memory) are outside of the loop. In
float32 MKL or oneDNN multiplies, whichever is faster here (`products.py`); under autocast oneDNN
multiplies in bfloat16, and the rest stays float32.

B batch, T time steps, S source steps, I inputs, H hidden units, M memory, R readout (what is fed),
G gates times H; Z = R + H for z = [fed; h], Y = M + H for y = [context; h].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from elman.nn.kernels import blocks, mkl
from elman.nn.kernels import cpu_feeding_loops as loops
from elman.nn.kernels.cpu import halves_of, product_of
from elman.nn.kernels.memory import room
from elman.nn.kernels.packing import PackedFor, pack
from elman.nn.kernels.persistent_launch import runs_on
from elman.nn.kernels.planning import PRODUCTS, KernelPlan, current_limits
from elman.nn.kernels.products import BFLOAT16, fastest


def plan(dtype: torch.dtype, inputs_BTI: Tensor, *others: Tensor) -> KernelPlan | None:
    """How this kernel computes, with products in `dtype`; None if it does not."""
    *_, recurrent_weight, readout = others
    device = inputs_BTI.device
    is_half = dtype == torch.bfloat16
    if device.type != "cpu" or runs_on(device) or not inputs_BTI.numel() or mkl.problem():
        return None
    if dtype not in (torch.float32, torch.bfloat16) or (is_half and blocks.problem()):
        return None
    if any(tensor.dtype not in (torch.float32, dtype) for tensor in (inputs_BTI, *others)):
        return None
    if readout.dtype != torch.float32 or recurrent_weight.dtype != torch.float32:
        return None
    limits, batch_size = current_limits(), len(inputs_BTI)
    num_threads = limits.num_threads or torch.get_num_threads()
    num_parts = max(1, min(num_threads, batch_size // limits.fewest_rows))
    num_gates, size = recurrent_weight.shape
    rows = -(-batch_size // num_parts)
    products = BFLOAT16 if is_half else fastest(rows, len(readout) + size, num_gates)
    over = f"rows over {num_parts} threads" if num_parts > 1 else "one thread"
    return KernelPlan(
        kernel="cpu",
        variant="compiled loop with attention and input feeding, "
        f"{over}, products {PRODUCTS[products]}",
        products=products,
        num_parts=num_parts,
    )


def run(plan: KernelPlan, mask_BS: Tensor, *given: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `feeding.run`: `given` are its tensors from the inputs on, W, the bias, U, the readout."""
    found: tuple[Tensor, Tensor, Tensor, Tensor] = _Feeding.apply(  # type: ignore[no-untyped-call]
        plan, mask_BS, *given
    )
    return found


class _Feeding(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, plan: KernelPlan, mask_BS: Tensor, *given: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x_BTI, h_BH, c_BH, fed_BR, keys_BSH, memory_BSM, W, bias, U, readout = given
        is_half, threads = plan.products == BFLOAT16, plan.num_parts
        batch_size, num_steps, width = x_BTI.shape
        size, (fed_size, both) = U.shape[1], readout.shape
        x = _Rows(is_half, num_steps, batch_size, width)
        x.fill(x_BTI.transpose(0, 1))
        keys, memory = (t.float().contiguous() for t in (keys_BSH, memory_BSM))
        gates = room(num_steps, batch_size, len(W))
        _multiply(x.left, W[:, :width], gates, threads, transposed=True)
        z = _Rows(is_half, num_steps + 1, batch_size, fed_size + size)
        z.fill(torch.cat([fed_BR.float(), h_BH.float()], dim=1), slice(1))
        y = _Rows(is_half, num_steps, batch_size, both)
        c = room(num_steps + 1, batch_size, size)
        c[0] = c_BH
        weights = room(num_steps, *mask_BS.shape)
        A_GZ = torch.cat([W[:, width:], U], dim=1)
        A, packed_readout = _packed([A_GZ, readout], True, plan, batch_size)
        loops.forward(
            num_rows=batch_size,
            num_parts=threads,
            is_half=int(is_half),
            A=A,
            readout=packed_readout,
            bias=bias.detach(),
            keys=keys,
            memory=memory,
            mask=mask_BS.float().contiguous(),
            gates=gates,
            z=z.floats,
            half_z=z.halves,
            y=y.floats,
            half_y=y.halves,
            c=c,
            weights=weights,
        )
        ctx.save_for_backward(W, A_GZ, readout, keys, memory, gates, c, weights)
        ctx.rows = x, z, y
        ctx.plan, ctx.dtypes = plan, [tensor.dtype for tensor in given]
        ctx.set_materialize_grads(False)
        # Copies: what is returned must not keep all else in memory.
        vectors_TBR = z.floats[1:, :, :fed_size].contiguous()
        after_BH = z.floats[-1, :, fed_size:].to(h_BH.dtype, copy=True)
        weights_BTS = weights.transpose(0, 1)
        ctx.mark_non_differentiable(weights_BTS)
        return vectors_TBR.transpose(0, 1), weights_BTS, after_BH, c[-1].to(c_BH.dtype, copy=True)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: Any,
        to_vectors_BTR: Tensor | None,
        nothing: None,
        to_after_BH: Tensor | None,
        to_after_c_BH: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        W, A_GZ, readout, keys, memory, gates, c, weights = ctx.saved_tensors
        x, z, y = ctx.rows
        plan: KernelPlan = ctx.plan
        is_half, threads = plan.products == BFLOAT16, plan.num_parts
        (num_steps, batch_size, _), size = gates.shape, c.shape[2]
        (fed_size, both), memory_size, width = readout.shape, memory.shape[2], x.width
        to_vectors = room(num_steps, batch_size, fed_size)
        to_vectors.copy_(
            torch.zeros(()) if to_vectors_BTR is None else to_vectors_BTR.transpose(0, 1)
        )
        to_z, to_c = torch.zeros(batch_size, fed_size + size), torch.zeros(batch_size, size)
        if to_after_BH is not None:
            to_z[:, fed_size:] = to_after_BH
        if to_after_c_BH is not None:
            to_c.copy_(to_after_c_BH)
        to_sums = _Rows(is_half, num_steps, batch_size, fed_size)
        to_gates = _Rows(is_half, num_steps, batch_size, 4 * size)
        to_y, to_scores = room(num_steps, batch_size, both), torch.empty_like(weights)
        to_bias = torch.zeros(threads, 4 * size, dtype=torch.float64)
        A, packed_readout = _packed([A_GZ, readout], False, plan, batch_size)
        loops.backward(
            num_rows=batch_size,
            num_parts=threads,
            is_half=int(is_half),
            A=A,
            readout=packed_readout,
            keys=keys,
            memory=memory,
            gates=gates,
            z=z.floats,
            c=c,
            weights=weights,
            to_vectors=to_vectors,
            to_sums=to_sums.floats,
            half_to_sums=to_sums.halves,
            to_y=to_y,
            to_scores=to_scores,
            to_gates=to_gates.floats,
            half_to_gates=to_gates.halves,
            to_z=to_z,
            to_c=to_c,
            to_bias=to_bias,
        )
        to_x = room(num_steps, batch_size, width)
        _multiply(to_gates.left, W[:, :width], to_x, threads, transposed=False)
        to_A = to_gates.summed_with(z, num_steps)
        h_TBH, to_context_TBM = y.floats[:, :, memory_size:], to_y[:, :, :memory_size]
        found = [
            to_x.transpose(0, 1),
            to_z[:, fed_size:],
            to_c,
            to_z[:, :fed_size],
            torch.bmm(to_scores.permute(1, 2, 0), h_TBH.transpose(0, 1)),
            torch.bmm(weights.permute(1, 2, 0), to_context_TBM.transpose(0, 1)),
            torch.cat([to_gates.summed_with(x, num_steps), to_A[:, :fed_size]], dim=1),
            to_bias.sum(0).float(),
            to_A[:, fed_size:],
            to_sums.summed_with(y, num_steps),
        ]
        cast = (tensor.to(dtype) for tensor, dtype in zip(found, ctx.dtypes, strict=True))
        return (None, None, *cast)


class _Rows:
    """Rows of numbers for each step: in float32, and as left sides of products in bfloat16."""

    def __init__(self, is_half: bool, num_steps: int, batch_size: int, width: int) -> None:
        self.width = width
        self.floats = room(num_steps, batch_size, width)
        if is_half:
            self.halves = halves_of(num_steps, batch_size, width)
        else:
            self.halves = torch.empty(num_steps, batch_size, 0, dtype=torch.bfloat16)
        self.left = self.halves if is_half else self.floats

    def fill(self, rows: Tensor, steps: slice = slice(None)) -> None:
        """Set the rows of some steps."""
        self.floats[steps] = rows
        if self.halves.shape[2]:
            self.halves[steps, :, : self.width] = rows

    def summed_with(self, other: _Rows, num_steps: int) -> Tensor:
        """Sum the outer products of rows here and there over the first steps."""
        left, right = (rows.left[:num_steps].flatten(0, 1) for rows in (self, other))
        if left.dtype == torch.float32:
            return product_of(left.t(), right)
        # Sums over all steps are float32 in oneDNN and rounded once.
        return torch.mm(left.t(), right)[: self.width, : other.width].float()


def _packed(
    matrices: Sequence[Tensor], transposed: bool, plan: KernelPlan, batch_size: int
) -> list[tuple[Tensor, Tensor]]:
    """Each matrix packed for the smaller and for the larger number of rows of a part."""
    if plan.products == BFLOAT16:
        panels = blocks.Panels(matrices, transposed=transposed, num_threads=plan.num_parts)
        return [(target.view(torch.float32),) * 2 for target in panels.targets]
    sizes = batch_size // plan.num_parts, -(-batch_size // plan.num_parts)
    wanted = [(PackedFor(m, transposed), rows) for m in matrices for rows in sizes]
    found = pack(wanted, plan.products, plan.num_parts)
    return list(zip(found[::2], found[1::2], strict=True))


def _multiply(
    left: Tensor, weight: Tensor, out: Tensor, num_threads: int, *, transposed: bool
) -> None:
    """out = left times the matrix, or its transpose, over all steps."""
    rows, flat = left.flatten(0, 1), out.flatten(0, 1)
    if left.dtype == torch.float32:
        torch.mm(rows, weight.t() if transposed else weight, out=flat)
    else:
        panels = blocks.Panels([weight], transposed=transposed, num_threads=num_threads)
        blocks.product(rows, panels, flat, num_threads)
