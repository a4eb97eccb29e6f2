"""A decoder with attention after each step and input feeding, over a whole text.

    h_t, c_t = LSTM([x_t; fed_{t-1}], h_{t-1}, c_{t-1})        fed_t = tanh(W [context_t; h_t])

Each step reads the attention of the one before, so steps are computed one after the other; but what
autograd would launch some ninety kernels for takes ten here, five forward and five backward.
Matrices are cast once per text, W x is one product over all steps, and so is the gradient of each
matrix, of the keys and of the memory. With Triton, what is elementwise and attention are one launch
each (`feeding_loops.py`). On a CPU all steps are one compiled loop (`cpu_feeding.py`).

B batch, T time steps, S source steps, I inputs, H hidden units, M memory, R readout (what is fed),
G gates times H; Z = R + H for z = [fed; h], Y = M + H for y = [context; h].
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from elman.nn.cells import Cell, LSTMCell
from elman.nn.kernels import cpu_feeding, stepwise
from elman.nn.kernels.persistent_launch import runs_on
from elman.nn.kernels.planning import KernelPlan
from elman.nn.shapes import Bool, Float

PLAN = KernelPlan(kernel="stepwise", variant="step by step with attention and input feeding")


def serves(cell: Cell) -> bool:
    """Whether this kernel computes such a cell: a plain LSTM."""
    return stepwise.serves(cell) and isinstance(cell, LSTMCell) and not cell.has_extras


def run(
    cell: Cell,
    inputs_BTI: Float[Tensor, "B T I"],
    h_BH: Float[Tensor, "B H"],
    c_BH: Float[Tensor, "B H"],
    fed_BR: Float[Tensor, "B R"],
    keys_BSH: Float[Tensor, "B S H"],
    memory_BSM: Float[Tensor, "B S M"],
    mask_BS: Bool[Tensor, "B S"],
    readout: Float[Tensor, "R Y"],
) -> tuple[Tensor, Tensor, Tensor, Tensor, KernelPlan]:
    """Return what is fed after each step (B, T, R), the attention weights (B, T, S), which have no
    gradient, h and c after the last step, and what computed them.

    `inputs_BTI` are the cell's inputs without what is fed, which is the last R of them.
    """
    given = (inputs_BTI, h_BH, c_BH, fed_BR, keys_BSH, memory_BSM)
    device = inputs_BTI.device.type
    is_autocast = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if is_autocast else inputs_BTI.dtype
    with torch.autocast(device, enabled=False) if is_autocast else nullcontext():
        weights = (cell.input_weight, cell.bias, cell.recurrent_weight, readout)
        plan = cpu_feeding.plan(dtype, *given, *weights)
        if plan is not None:
            found = cpu_feeding.run(plan, mask_BS, *given, *weights)
        else:
            plan, found = PLAN, _Loop.apply(dtype, mask_BS, *given, *weights)  # type: ignore[no-untyped-call]
    return *found, plan


class _Loop(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, dtype: torch.dtype, mask_BS: Tensor, *given: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x_BTI, h_BH, c_BH, fed_BR, keys_BSH, memory_BSM, W, bias, U, readout = given
        batch_size, num_steps, width = x_BTI.shape
        size, fed_size, both = U.shape[1], *readout.shape
        wide = torch.promote_types(dtype, torch.float32)
        rows_NI = x_BTI.transpose(0, 1).to(dtype).reshape(-1, width)
        W = W.to(dtype)
        W_GI, A_GZ = W[:, :width], torch.cat([W[:, width:], U.to(dtype)], dim=1)
        readout_RY = readout.to(dtype)
        keys_BSH, memory_BSM = (t.to(dtype).contiguous() for t in (keys_BSH, memory_BSM))
        mask_BS = mask_BS.contiguous()
        gates = torch.addmm(bias.to(dtype), rows_NI, W_GI.t()).view(num_steps, batch_size, -1)
        z = gates.new_empty(num_steps + 1, batch_size, fed_size + size)
        z[0, :, :fed_size], z[0, :, fed_size:] = fed_BR, h_BH
        y = gates.new_empty(num_steps, batch_size, both)
        c = gates.new_empty(num_steps + 1, batch_size, size, dtype=wide)
        c[0] = c_BH
        weights = c.new_empty(num_steps, *mask_BS.shape)
        sums_BR = gates.new_empty(batch_size, fed_size)
        steps = _Steps(keys_BSH, memory_BSM, mask_BS)
        for t in range(num_steps):
            gates[t].addmm_(z[t], A_GZ.t())
            steps.cell(gates[t], c[t], c[t + 1], z[t + 1], y[t])
            steps.attend(y[t], weights[t])
            torch.mm(y[t], readout_RY.t(), out=sums_BR)
            torch.tanh(sums_BR, out=z[t + 1, :, :fed_size])
        saved = (rows_NI, W_GI, A_GZ, readout_RY, keys_BSH, memory_BSM, mask_BS)
        ctx.save_for_backward(*saved, gates, z, y, c, weights)
        ctx.dtypes = [tensor.dtype for tensor in given]
        ctx.set_materialize_grads(False)
        # Copies: what is returned must not keep all else in memory.
        vectors_TBR = z[1:, :, :fed_size].contiguous()
        after_BH, after_c_BH = z[-1, :, fed_size:].to(h_BH.dtype, copy=True), c[-1].to(c_BH.dtype)
        weights_BTS = weights.transpose(0, 1)
        ctx.mark_non_differentiable(weights_BTS)
        return vectors_TBR.transpose(0, 1), weights_BTS, after_BH, after_c_BH.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: Any,
        to_vectors_BTR: Tensor | None,
        nothing: None,
        to_after_BH: Tensor | None,
        to_after_c_BH: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        rows_NI, W_GI, A_GZ, readout_RY, keys_BSH, memory_BSM, mask_BS, *kept = ctx.saved_tensors
        gates, z, y, c, weights = kept
        num_steps, batch_size, size = len(gates), z.shape[1], c.shape[2]
        fed_size, memory_size = z.shape[2] - size, memory_BSM.shape[2]
        to_vectors = z.new_zeros(num_steps, batch_size, fed_size)
        if to_vectors_BTR is not None:
            to_vectors = to_vectors_BTR.transpose(0, 1).to(z.dtype).contiguous()
        to_gates, to_y = torch.empty_like(gates), torch.empty_like(y)
        to_sums, to_scores = torch.empty_like(to_vectors), torch.empty_like(weights, dtype=z.dtype)
        to_z, to_h, to_c = torch.zeros_like(z[0]), torch.empty_like(c[0]), torch.zeros_like(c[0])
        if to_after_BH is not None:
            to_z[:, fed_size:] = to_after_BH
        if to_after_c_BH is not None:
            to_c.copy_(to_after_c_BH)
        steps = _Steps(keys_BSH, memory_BSM, mask_BS)
        for t in reversed(range(num_steps)):
            steps.readout_slopes(to_vectors[t], to_z, z[t + 1], to_sums[t])
            torch.mm(to_sums[t], readout_RY, out=to_y[t])
            steps.attend_slopes(to_y[t], to_z, weights[t], to_scores[t], to_h)
            steps.cell_slopes(to_h, to_c, gates[t], c[t], c[t + 1], to_gates[t])
            torch.mm(to_gates[t], A_GZ, out=to_z)
        slopes_NG = to_gates.flatten(0, 1)
        to_A = slopes_NG.t() @ z[:-1].flatten(0, 1)
        found = [
            (slopes_NG @ W_GI).view(num_steps, batch_size, -1).transpose(0, 1),
            to_z[:, fed_size:],
            to_c,
            to_z[:, :fed_size],
            torch.bmm(to_scores.permute(1, 2, 0), y[:, :, memory_size:].transpose(0, 1)),
            torch.bmm(
                weights.to(z.dtype).permute(1, 2, 0), to_y[:, :, :memory_size].transpose(0, 1)
            ),
            torch.cat([slopes_NG.t() @ rows_NI, to_A[:, :fed_size]], dim=1),
            # A sum over rows as a product, as in `persistent.py`.
            (slopes_NG.new_ones(1, len(slopes_NG)) @ slopes_NG)[0],
            to_A[:, fed_size:],
            to_sums.flatten(0, 1).t() @ y.flatten(0, 1),
        ]
        cast = (tensor.to(dtype) for tensor, dtype in zip(found, ctx.dtypes, strict=True))
        return (None, None, *cast)


class _Steps:
    """The parts of a step beside large products, by Triton or by torch."""

    def __init__(self, keys_BSH: Tensor, memory_BSM: Tensor, mask_BS: Tensor) -> None:
        self.source = keys_BSH, memory_BSM
        self.mask_BS = mask_BS
        self.loops: Any = None
        if memory_BSM.dtype != torch.float64 and runs_on(memory_BSM.device):
            from elman.nn.kernels import feeding_loops

            if memory_BSM.shape[1] <= feeding_loops.LONGEST_SOURCE:
                self.loops = feeding_loops

    def cell(
        self, gates_BG: Tensor, c_BH: Tensor, new_BH: Tensor, z_BZ: Tensor, y_BY: Tensor
    ) -> None:
        """The new cell and h, in z and y; the sums of the gates become their values."""
        if self.loops is not None:
            self.loops.cell(gates_BG, c_BH, new_BH, z_BZ, y_BY)
            return
        size = c_BH.shape[1]
        gates_BG[:, : 2 * size].sigmoid_()
        gates_BG[:, 2 * size : 3 * size].tanh_()
        gates_BG[:, 3 * size :].sigmoid_()
        i, f, g, o = gates_BG.chunk(4, dim=1)
        new_BH.copy_(f * c_BH + i.to(c_BH.dtype) * g)
        h_BH = o * torch.tanh(new_BH)
        z_BZ[:, -size:], y_BY[:, -size:] = h_BH, h_BH

    def attend(self, y_BY: Tensor, weights_BS: Tensor) -> None:
        """The attention weights, and the context in y."""
        keys_BSH, memory_BSM = self.source
        if self.loops is not None:
            self.loops.attend(y_BY, keys_BSH, memory_BSM, self.mask_BS, weights_BS)
            return
        memory_size = memory_BSM.shape[2]
        scores_BS = torch.bmm(keys_BSH, y_BY[:, memory_size:, None])[:, :, 0].to(weights_BS.dtype)
        # A finite minimum: the softmax of a row of -inf would be NaN.
        scores_BS = scores_BS.masked_fill(~self.mask_BS, torch.finfo(scores_BS.dtype).min)
        torch.mul(scores_BS.softmax(dim=1), self.mask_BS, out=weights_BS)
        context_B1M = torch.bmm(weights_BS[:, None].to(memory_BSM.dtype), memory_BSM)
        y_BY[:, :memory_size] = context_B1M[:, 0]

    def readout_slopes(
        self, to_vectors_BR: Tensor, to_z_BZ: Tensor, z_BZ: Tensor, to_sums_BR: Tensor
    ) -> None:
        """The gradient before the tanh of what is fed, in z."""
        if self.loops is not None:
            self.loops.readout_slopes(to_vectors_BR, to_z_BZ, z_BZ, to_sums_BR)
            return
        fed_size = to_sums_BR.shape[1]
        fed_BR = z_BZ[:, :fed_size]
        torch.mul(to_vectors_BR + to_z_BZ[:, :fed_size], 1 - fed_BR * fed_BR, out=to_sums_BR)

    def attend_slopes(
        self,
        to_y_BY: Tensor,
        to_z_BZ: Tensor,
        weights_BS: Tensor,
        to_scores_BS: Tensor,
        to_h_BH: Tensor,
    ) -> None:
        """The gradient of the scores, and of h by all ways that it takes."""
        keys_BSH, memory_BSM = self.source
        if self.loops is not None:
            self.loops.attend_slopes(
                to_y_BY, to_z_BZ, keys_BSH, memory_BSM, weights_BS, to_scores_BS, to_h_BH
            )
            return
        memory_size, size = memory_BSM.shape[2], to_h_BH.shape[1]
        to_weights_BS = torch.bmm(memory_BSM, to_y_BY[:, :memory_size, None])[:, :, 0]
        products_BS = weights_BS * to_weights_BS.to(weights_BS.dtype)
        to_scores_BS.copy_(products_BS - weights_BS * products_BS.sum(dim=1, keepdim=True))
        by_attention_B1H = torch.bmm(to_scores_BS[:, None], keys_BSH)
        torch.add(to_y_BY[:, memory_size:], to_z_BZ[:, -size:], out=to_h_BH)
        to_h_BH += by_attention_B1H[:, 0]

    def cell_slopes(
        self,
        to_h_BH: Tensor,
        to_c_BH: Tensor,
        values_BG: Tensor,
        c_BH: Tensor,
        new_BH: Tensor,
        to_gates_BG: Tensor,
    ) -> None:
        """The gradient of the gates' sums; that of the new cell becomes that of the old one."""
        if self.loops is not None:
            self.loops.cell_slopes(to_h_BH, to_c_BH, values_BG, c_BH, new_BH, to_gates_BG)
            return
        i, f, g, o = values_BG.chunk(4, dim=1)
        to_i, to_f, to_g, to_o = to_gates_BG.chunk(4, dim=1)
        shown_BH = torch.tanh(new_BH)
        to_c_BH += to_h_BH * o * (1 - shown_BH * shown_BH)
        to_i.copy_(to_c_BH * g * i * (1 - i))
        to_f.copy_(to_c_BH * c_BH * f * (1 - f))
        to_g.copy_(to_c_BH * i * (1 - g * g))
        to_o.copy_(to_h_BH * shown_BH * o * (1 - o))
        to_c_BH *= f
