"""Log probabilities of target words under a softmax, without (N, V) numbers beyond a chunk.

The rows are taken in chunks. While gradients are wanted on a CPU, each chunk's gradients are
computed on the spot from the probabilities at hand, in place: nothing of the size of the vocabulary
is saved for the backward pass, which takes two thirds of the time of `cross_entropy(linear(...))`.
Such a gradient can be scaled afterwards by one number, not by one number per row; where the rows
turn out to weigh differently, and on other devices, where products are cheap and asking would
stall, the backward pass computes the chunks a second time. What fits into one chunk there is left
to torch, whose fused kernels are the quickest.

N rows, V vocabulary, H hidden.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from elman.nn.shapes import Float, Int

CHUNK_ELEMENTS = {"cpu": 1 << 23, "cuda": 1 << 26}
"""How many logits are held at once. On a CPU smaller chunks stay in the cache, but read and write
the gradient of the matrix more often: from 2^20 to 2^23 all take about the same time."""


def target_logprobs(
    hidden_NH: Float[Tensor, "N H"],
    weight_VH: Float[Tensor, "V H"],
    bias_V: Float[Tensor, "V"] | None,
    targets_N: Int[Tensor, "N"],
    *,
    equal_weights: bool = True,
) -> Float[Tensor, "N"]:
    """log softmax(weight h + bias) at each row's target, in float32 at least.

    `equal_weights` is a hint that the rows' results will weigh the same in the loss; it is never
    wrong, only slow.
    """
    if not len(targets_N):
        return hidden_NH.sum(dim=1)
    on_cpu = hidden_NH.device.type == "cpu"
    if not on_cpu and len(targets_N) * len(weight_VH) <= CHUNK_ELEMENTS["cuda"]:
        logits_NV = F.linear(hidden_NH, weight_VH, bias_V)
        logits_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
        return -F.cross_entropy(logits_NV, targets_N, reduction="none")
    eager = equal_weights and torch.is_grad_enabled() and on_cpu
    result: Tensor = _TargetLogprobs.apply(hidden_NH, weight_VH, bias_V, targets_N, eager)  # type: ignore[no-untyped-call]
    return result


class _TargetLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: Tensor,
        weight_VH: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        eager: bool,
    ) -> Tensor:
        device = hidden_NH.device.type
        ctx.dtype = weight_VH.dtype
        if torch.is_autocast_enabled(device):
            ctx.dtype = torch.get_autocast_dtype(device)
        given = (hidden_NH, weight_VH, bias_V, targets_N)
        ctx.save_for_backward(*given)
        wanted = ctx.needs_input_grad[:3] if eager else (False, False, False)
        with torch.autocast(device, enabled=False):
            logprobs_N, *gradients = _sweep(*given, None, ctx.dtype, wanted)
        ctx.gradients = gradients if any(wanted) else None
        return logprobs_N

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, weights_N: Tensor) -> tuple[Tensor | None, ...]:
        hidden_NH, weight_VH, bias_V, targets_N = ctx.saved_tensors
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is not None and bool((weights_N == weights_N[:1]).all()):
            gradients = [None if g is None else g.mul_(weights_N[0]) for g in gradients]
        else:
            with torch.autocast(weights_N.device.type, enabled=False):
                _, *gradients = _sweep(
                    hidden_NH,
                    weight_VH,
                    bias_V,
                    targets_N,
                    weights_N,
                    ctx.dtype,
                    ctx.needs_input_grad[:3],
                )
        return (*gradients, None, None)


def _sweep(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    bias_V: Tensor | None,
    targets_N: Tensor,
    weights_N: Tensor | None,
    dtype: torch.dtype,
    wanted: tuple[bool, ...],
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Log probabilities, and the gradients of their weighted sum (None: all weights 1) that are
    wanted."""
    # Sums over the vocabulary need more than bfloat16's eight bits.
    wide = torch.promote_types(dtype, torch.float32)
    num_rows, (vocab_size, hidden_size) = len(hidden_NH), weight_VH.shape
    logprobs_N = hidden_NH.new_empty(num_rows, dtype=wide)
    to_hidden = torch.empty_like(hidden_NH, dtype=dtype) if wanted[0] else None
    to_weight = torch.empty_like(weight_VH, dtype=wide) if wanted[1] else None
    to_bias = torch.empty_like(bias_V, dtype=wide) if wanted[2] and bias_V is not None else None
    hidden_cast, weight_cast = hidden_NH.to(dtype), weight_VH.to(dtype)
    buffer: Tensor | None = None
    for rows in _chunks(num_rows, vocab_size, hidden_NH.device):
        chunk_nH, targets_n1 = hidden_cast[rows], targets_N[rows].unsqueeze(1)
        if buffer is None:
            buffer = chunk_nH.new_empty(len(chunk_nH), vocab_size)
        logits_nV = _linear(chunk_nH, weight_cast, bias_V, buffer[: len(chunk_nH)]).to(wide)
        chosen_n1 = logits_nV.gather(1, targets_n1)
        # max, exp, sum in place: on a CPU torch.logsumexp takes three times as long.
        highest_n1 = logits_nV.amax(1, keepdim=True)
        exps_nV = logits_nV.sub_(highest_n1).exp_()
        sums_n1 = exps_nV.sum(1, keepdim=True)
        logprobs_N[rows] = (chosen_n1 - highest_n1 - sums_n1.log()).squeeze(1)
        if not any(wanted):
            continue
        # d logprob / d logits = onehot - exps / sums; the factor -1 / sums waits.
        exps_nV.scatter_add_(1, targets_n1, -sums_n1)
        scale_n1 = -1 / sums_n1
        if weights_N is not None:
            scale_n1 *= weights_N[rows].unsqueeze(1)
        # It goes to the narrower side of the products; in float16, whose range the sums could
        # leave, it cannot wait.
        scales_hidden = dtype == wide and hidden_size < vocab_size
        if not scales_hidden:
            exps_nV = exps_nV.mul_(scale_n1).to(dtype)
        keep = 0 if rows.start == 0 else 1
        if to_hidden is not None:
            torch.mm(exps_nV, weight_cast, out=to_hidden[rows])
            if scales_hidden:
                to_hidden[rows].mul_(scale_n1)
        if to_weight is not None:
            scaled_nH = chunk_nH * scale_n1 if scales_hidden else chunk_nH
            if dtype == wide:
                torch.addmm(to_weight, exps_nV.t(), scaled_nH, beta=keep, out=to_weight)
            else:
                product_VH = torch.mm(exps_nV.t(), scaled_nH)
                to_weight = product_VH.to(wide) if keep == 0 else to_weight.add_(product_VH)
        if to_bias is not None:
            summed_V = (
                torch.mv(exps_nV.t(), scale_n1.squeeze(1))
                if scales_hidden
                else exps_nV.sum(0, dtype=wide)
            )
            to_bias = summed_V if keep == 0 else to_bias.add_(summed_V)
    return (
        logprobs_N,
        None if to_hidden is None else to_hidden.to(hidden_NH.dtype),
        None if to_weight is None else to_weight.to(weight_VH.dtype),
        None if to_bias is None or bias_V is None else to_bias.to(bias_V.dtype),
    )


def _chunks(num_rows: int, vocab_size: int, device: torch.device) -> Iterator[slice]:
    """Slices of rows of about equal size; none of more than the allowed number of logits, if it can
    be."""
    most = max(1, CHUNK_ELEMENTS["cpu" if device.type == "cpu" else "cuda"] // max(1, vocab_size))
    num_chunks = max(1, -(-num_rows // most))
    size = max(1, -(-num_rows // num_chunks))
    for start in range(0, num_rows, size):
        yield slice(start, min(start + size, num_rows))


def _linear(hidden_nH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, out_nV: Tensor) -> Tensor:
    if bias_V is None:
        return torch.mm(hidden_nH, weight_VH.t(), out=out_nV)
    return torch.addmm(bias_V.to(hidden_nH.dtype), hidden_nH, weight_VH.t(), out=out_nV)
