"""Log probabilities of target words under a softmax, with (N, V) numbers only in chunks.

Rows are processed in chunks. On a CPU, while gradients are needed, each chunk's gradients are
computed at once from its probabilities, in place: nothing of the size of the vocabulary is saved
for the backward pass, and the whole takes two thirds of the time of `cross_entropy(linear(...))`.
Such a gradient can be scaled afterwards by one number, but not by one number per row. If the rows
turn out to have different weights, and on other devices, where products are cheap and checking
would stall, the backward pass recomputes the chunks. With Triton, logits that fit into one chunk
are kept at the precision of the products and overwritten by their gradient (`softmax_loops.py`).
None of these has second derivatives.

With label smoothing (`smoothed_logprobs`), a share of each target is spread evenly over the
vocabulary, in the same pass.

The scores of hashed n-grams (`elman.nn.hashed_ngrams`) are added to the logits, and their table
gets its gradient with the others.

N rows, V vocabulary, H hidden, O orders of n-grams, X slots of their table.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from elman.nn.hashed_ngrams import Found
from elman.nn.kernels import softmax
from elman.nn.kernels.memory import half_room, room
from elman.nn.kernels.persistent_launch import runs_on
from elman.nn.shapes import Float, Int

CHUNK_ELEMENTS = {"cpu": 1 << 23, "cuda": 1 << 26}
"""Maximum number of logits held at once. On a CPU smaller chunks stay in the cache but read and
write the gradient of the matrix more often: from 2^20 to 2^23 all take about the same time."""

ONE_CHUNK = 1 << 28
"""The same with Triton, for logits that are kept for the backward pass: half a GiB in 16 bits."""
BYTES_PER_KEPT = 128
"""On a large GPU more logits are kept, one for this many bytes of its memory: the 15 softmaxes of a
mixture have 336 million for 2,240 tokens and 10,000 words."""

CHUNK_ROWS = 64
"""Minimum rows of a chunk, however large the vocabulary: each chunk reads the whole matrix."""


def target_logprobs(
    hidden_NH: Float[Tensor, "N H"],
    weight_VH: Float[Tensor, "V H"],
    bias_V: Float[Tensor, "V"] | None,
    targets_N: Int[Tensor, "N"],
    contexts_NO: Int[Tensor, "N O"] | None = None,
    table_X: Float[Tensor, "X"] | None = None,
    owners_X: Tensor | None = None,
    *,
    equal_weights: bool = True,
) -> Float[Tensor, "N"]:
    """log softmax(weight h + bias + n-gram scores) at each row's target, in float32 or wider.

    `equal_weights` hints that all results will have the same weight in the loss; if not, the result
    is still correct, only slower.
    """
    if not len(targets_N):
        return hidden_NH.sum(dim=1)
    on_cpu = hidden_NH.device.type == "cpu"
    most = _most_kept(hidden_NH.device)
    fits = len(targets_N) * len(weight_VH) <= most
    is_wide = _dtype_of_products(weight_VH).itemsize > 4
    keeps = fits or not torch.is_grad_enabled()
    if keeps and contexts_NO is None and not is_wide and runs_on(hidden_NH.device):
        parts = [(hidden_NH, targets_N)]
        if not fits:
            size = max(CHUNK_ROWS, most // len(weight_VH))
            spans = [slice(start, start + size) for start in range(0, len(targets_N), size)]
            parts = [(hidden_NH[rows], targets_N[rows]) for rows in spans]
        found: list[Tensor] = [
            _OneChunk.apply(hidden_nH, weight_VH, bias_V, targets_n)  # type: ignore[no-untyped-call]
            for hidden_nH, targets_n in parts
        ]
        return found[0] if fits else torch.cat(found)
    is_plain = contexts_NO is None and not torch.is_grad_enabled()
    if is_plain and softmax.serves_scores(hidden_NH, weight_VH):
        return softmax.scores(hidden_NH, weight_VH, bias_V, targets_N)
    eager = equal_weights and torch.is_grad_enabled() and on_cpu
    result: tuple[Tensor, Tensor] = _TargetLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden_NH, weight_VH, bias_V, table_X, targets_N, contexts_NO, owners_X, eager, 0.0
    )
    return result[0]


@lru_cache(None)
def _most_kept(device: torch.device) -> int:
    """Return how many logits are kept for the backward pass."""
    if device.type != "cuda":
        return ONE_CHUNK
    return max(ONE_CHUNK, torch.cuda.get_device_properties(device).total_memory // BYTES_PER_KEPT)


def smoothed_logprobs(
    hidden_NH: Float[Tensor, "N H"],
    weight_VH: Float[Tensor, "V H"],
    bias_V: Float[Tensor, "V"] | None,
    targets_N: Int[Tensor, "N"],
    smoothing: float,
) -> tuple[Float[Tensor, "N"], Float[Tensor, "N"]]:
    """(1 - smoothing) log p(target) + smoothing (mean of log p over the vocabulary), and
    log p(target), which has no gradient."""
    if not len(targets_N):
        return hidden_NH.sum(dim=1), hidden_NH.detach().sum(dim=1)
    eager = torch.is_grad_enabled() and hidden_NH.device.type == "cpu"
    found: tuple[Tensor, Tensor] = _TargetLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden_NH, weight_VH, bias_V, None, targets_N, None, None, eager, smoothing
    )
    return found


class _OneChunk(torch.autograd.Function):
    """All rows at once with Triton: the logits are kept and overwritten by their gradient."""

    @staticmethod
    def forward(
        ctx: Any, hidden_NH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, targets_N: Tensor
    ) -> Tensor:
        from elman.nn.kernels import softmax_loops

        ctx.dtype = _dtype_of_products(weight_VH)
        ctx.save_for_backward(hidden_NH, weight_VH, bias_V, targets_N)
        with torch.autocast(hidden_NH.device.type, enabled=False):
            logits_NV = _all_logits(hidden_NH, weight_VH, bias_V, ctx.dtype)
        logprobs_N, ctx.norms_N = softmax_loops.logprobs(logits_NV, targets_N)
        ctx.logits_NV = logits_NV if any(ctx.needs_input_grad) else None
        return logprobs_N

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, weights_N: Tensor) -> tuple[Tensor | None, ...]:
        from elman.nn.kernels import softmax_loops

        hidden_NH, weight_VH, bias_V, targets_N = ctx.saved_tensors
        slopes_NV, ctx.logits_NV = ctx.logits_NV, None
        with torch.autocast(weights_N.device.type, enabled=False):
            if slopes_NV is None:  # a second backward pass through the same graph
                slopes_NV = _all_logits(hidden_NH, weight_VH, bias_V, ctx.dtype)
            softmax_loops.to_slopes(slopes_NV, targets_N, ctx.norms_N, weights_N)
            to_hidden = to_weight = to_bias = None
            if ctx.needs_input_grad[0]:
                to_hidden = (slopes_NV @ weight_VH.to(ctx.dtype)).to(hidden_NH.dtype)
            if ctx.needs_input_grad[1]:
                to_weight = (slopes_NV.t() @ hidden_NH.to(ctx.dtype)).to(weight_VH.dtype)
            if bias_V is not None and ctx.needs_input_grad[2]:
                ones_1N = slopes_NV.new_ones(1, len(slopes_NV))
                to_bias = (ones_1N @ slopes_NV)[0].to(bias_V.dtype)
        return to_hidden, to_weight, to_bias, None


def _all_logits(
    hidden_NH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, dtype: torch.dtype
) -> Tensor:
    bias = None if bias_V is None else bias_V.to(dtype)
    return F.linear(hidden_NH.to(dtype), weight_VH.to(dtype), bias)


def _dtype_of_products(weight_VH: Tensor) -> torch.dtype:
    device = weight_VH.device.type
    if torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return weight_VH.dtype


class _TargetLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: Tensor,
        weight_VH: Tensor,
        bias_V: Tensor | None,
        table_X: Tensor | None,
        targets_N: Tensor,
        contexts_NO: Tensor | None,
        owners_X: Tensor | None,
        eager: bool,
        smoothing: float,
    ) -> tuple[Tensor, Tensor]:
        device = hidden_NH.device.type
        ctx.smoothing = smoothing
        ctx.dtype = _dtype_of_products(weight_VH)
        given = (hidden_NH, weight_VH, bias_V, table_X, targets_N, contexts_NO, owners_X)
        ctx.save_for_backward(*given)
        wanted = ctx.needs_input_grad[:4] if eager else (False,) * 4
        # Assume that the loss is the mean of the negated results.
        ctx.expected = -1 / len(targets_N)
        # In float32 or wider: in bfloat16 the weight itself would be rounded.
        weights_N = None
        if any(wanted):
            wide = torch.promote_types(ctx.dtype, torch.float32)
            weights_N = hidden_NH.new_full((len(targets_N),), ctx.expected, dtype=wide)
        with torch.autocast(device, enabled=False):
            smoothed_N, logprobs_N, *gradients = _sweep(
                *given, weights_N, ctx.dtype, wanted, smoothing
            )
        ctx.gradients = gradients if any(wanted) else None
        ctx.mark_non_differentiable(logprobs_N)
        return smoothed_N, logprobs_N

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, weights_N: Tensor, *others: Any) -> tuple[Tensor | None, ...]:
        given: tuple[Any, Any, Any, Any, Any, Any, Any] = ctx.saved_tensors
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is not None and bool((weights_N == weights_N[:1]).all()):
            factor = float(weights_N[0] / weights_N.new_tensor(ctx.expected))
            if factor != 1:
                gradients = [None if g is None else g.mul_(factor) for g in gradients]
        else:
            with torch.autocast(weights_N.device.type, enabled=False):
                wanted = ctx.needs_input_grad[:4]
                _, _, *gradients = _sweep(*given, weights_N, ctx.dtype, wanted, ctx.smoothing)
        return (*gradients, None, None, None, None, None)


def _sweep(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    bias_V: Tensor | None,
    table_X: Tensor | None,
    targets_N: Tensor,
    contexts_NO: Tensor | None,
    owners_X: Tensor | None,
    weights_N: Tensor | None,
    dtype: torch.dtype,
    wanted: tuple[bool, ...],
    smoothing: float,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """Return smoothed and plain log probabilities, and the wanted gradients of the (weighted) sum
    of the smoothed ones."""
    wide = torch.promote_types(dtype, torch.float32)  # for sums over the vocabulary
    logprobs_N, means_N = hidden_NH.new_empty(2, len(hidden_NH), dtype=wide)
    device = hidden_NH.device
    to_hidden = _empty(hidden_NH.shape, dtype, device) if wanted[0] else None
    to_weight = _empty(weight_VH.shape, wide, device) if wanted[1] else None
    to_bias = torch.zeros_like(bias_V, dtype=wide) if wanted[2] and bias_V is not None else None
    to_table = torch.zeros_like(table_X) if wanted[3] and table_X is not None else None
    hidden, weight = hidden_NH.to(dtype), weight_VH.to(dtype)
    bias = None if bias_V is None else bias_V.to(dtype)
    # The exponentials add the bias if the compiled loop runs.
    left_bias = bias if softmax.serves(hidden) and table_X is None else None
    if any(wanted) and table_X is None and weights_N is not None and softmax.serves_halves(hidden):
        for rows, slopes_nV in _logits(hidden, weight, None):
            given = (slopes_nV, bias_V, targets_N[rows], weights_N[rows])
            logprobs_N[rows], means_N[rows], sums_V = softmax.to_slopes(*given, smoothing)
            if to_hidden is not None:
                torch.mm(slopes_nV, weight, out=to_hidden[rows])
            if to_weight is not None:
                _add_product(to_weight, slopes_nV.t(), hidden[rows], first=rows.start == 0)
            if to_bias is not None:
                to_bias += sums_V
        gradients = _in_dtypes(hidden_NH, weight_VH, to_hidden, to_weight, to_bias)
        return _smoothed(logprobs_N, means_N, smoothing), logprobs_N, *gradients, None
    for rows, logits_nV in _logits(hidden, weight, None if left_bias is not None else bias):
        logits_nV, targets_n1 = logits_nV.to(wide), targets_N[rows].unsqueeze(1)
        found = None
        if table_X is not None and owners_X is not None and contexts_NO is not None:
            found = Found(owners_X, contexts_NO[rows], len(weight_VH))
            found.add_scores(logits_nV, table_X)
        chosen_n1 = logits_nV.gather(1, targets_n1)
        if left_bias is not None:
            chosen_n1 += left_bias[targets_n1]
        if smoothing:
            means_N[rows] = logits_nV.mean(1)
            if left_bias is not None:
                means_N[rows] += left_bias.mean()
        exps_nV, highest_n1, sums_n1 = _exponentials(logits_nV, left_bias)
        logprobs_N[rows] = (chosen_n1 - highest_n1 - sums_n1.log()).squeeze(1)
        if smoothing:
            means_N[rows] -= (highest_n1 + sums_n1.log()).squeeze(1)
        if not any(wanted):
            continue
        # d logprob / d logits = onehot - exps / sums = (exps - sums onehot) scale; with
        # smoothing, (1 - smoothing) onehot + smoothing / V instead of onehot.
        if smoothing:
            exps_nV -= sums_n1 * (smoothing / len(weight_VH))
        exps_nV.scatter_add_(1, targets_n1, -(1 - smoothing) * sums_n1)
        scale_n1 = -1 / sums_n1
        if weights_N is not None:
            scale_n1 *= weights_N[rows].unsqueeze(1)
        # Scale the narrower operand, except at low precision: float16 could not hold the sums.
        narrow = dtype == wide and weight.shape[1] < weight.shape[0] and to_table is None
        if not narrow:
            exps_nV = exps_nV.mul_(scale_n1)
            if to_table is not None and found is not None:
                found.add_slopes(to_table, exps_nV)
            exps_nV = exps_nV.to(dtype)
        if to_hidden is not None:
            torch.mm(exps_nV, weight, out=to_hidden[rows])
            if narrow:
                to_hidden[rows] *= scale_n1
        if to_weight is not None:
            scaled_nH = hidden[rows] * scale_n1 if narrow else hidden[rows]
            _add_product(to_weight, exps_nV.t(), scaled_nH, first=rows.start == 0)
        if to_bias is not None:
            to_bias += torch.mv(exps_nV.t(), scale_n1[:, 0]) if narrow else exps_nV.sum(0)
    gradients = _in_dtypes(hidden_NH, weight_VH, to_hidden, to_weight, to_bias)
    return _smoothed(logprobs_N, means_N, smoothing), logprobs_N, *gradients, to_table


def _smoothed(logprobs_N: Tensor, means_N: Tensor, smoothing: float) -> Tensor:
    # A copy: a function of autograd must not return one tensor twice.
    return (1 - smoothing) * logprobs_N + smoothing * means_N if smoothing else logprobs_N.clone()


def _in_dtypes(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    to_hidden: Tensor | None,
    to_weight: Tensor | None,
    to_bias: Tensor | None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients in the dtypes of what they are the gradients of."""
    return (
        None if to_hidden is None else to_hidden.to(hidden_NH.dtype),
        None if to_weight is None else to_weight.to(weight_VH.dtype),
        None if to_bias is None else to_bias.to(weight_VH.dtype),
    )


def _exponentials(logits_nV: Tensor, bias_V: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Compute exp(logits + bias - row maximum) in place; return it, the maxima and the sums."""
    if softmax.serves(logits_nV):
        return logits_nV, *softmax.exponentials(logits_nV, bias_V)
    # max, exp and sum in place: torch.logsumexp takes three times as long on a CPU.
    highest_n1 = logits_nV.amax(1, keepdim=True)
    exps_nV = logits_nV.sub_(highest_n1).exp_()
    return exps_nV, highest_n1, exps_nV.sum(1, keepdim=True)


def _empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Allocate memory; on a CPU, reuse buffers of earlier steps."""
    if device.type == "cpu" and dtype in (torch.float32, torch.bfloat16):
        return room(*shape) if dtype == torch.float32 else half_room(*shape)
    return torch.empty(shape, dtype=dtype, device=device)


def _logits(
    hidden_NH: Tensor, weight_VH: Tensor, bias_V: Tensor | None
) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of rows of about equal size with their logits, all in one buffer."""
    num_rows, vocab_size = len(hidden_NH), len(weight_VH)
    allowed = CHUNK_ELEMENTS["cpu" if hidden_NH.device.type == "cpu" else "cuda"]
    num_chunks = -(-num_rows // max(CHUNK_ROWS, allowed // vocab_size))
    size = -(-num_rows // num_chunks)
    buffer = _empty((size, vocab_size), hidden_NH.dtype, hidden_NH.device)
    for start in range(0, num_rows, size):
        rows = slice(start, min(start + size, num_rows))
        logits_nV = buffer[: rows.stop - start]
        if bias_V is None:
            torch.mm(hidden_NH[rows], weight_VH.t(), out=logits_nV)
        else:
            torch.addmm(bias_V, hidden_NH[rows], weight_VH.t(), out=logits_nV)
        yield rows, logits_nV


def _add_product(total: Tensor, left: Tensor, right: Tensor, *, first: bool) -> None:
    """Add a product to `total`, or store it if `first`: zeroing the matrix would cost a pass over
    it."""
    if total.dtype == left.dtype:
        total.addmm_(left, right, beta=0 if first else 1)
    elif first:
        total.copy_(torch.mm(left, right))
    else:
        total += torch.mm(left, right)
