"""Softmax of a chunk of logits, in place, on torch's threads (`team.py`).

torch has max, difference, exponential and sum as four passes over memory; here a row is read once
and written once, with the bias added. Logits in bfloat16 become their gradients, also in bfloat16;
what is between is float32, a row at a time.

N rows, V vocabulary.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from elman.nn.kernels import mkl
from elman.nn.kernels.loops import F32, LOWEST, exp, halved, rank, ranked, widened
from elman.nn.kernels.team import Floats1, Floats2, Halves2, Int64s, pooled_loop
from elman.nn.shapes import Float, Int

ROWS_PER_PART = 8
"""Rows that are worth handing to a thread."""


def serves(logits_NV: Float[Tensor, "N V"]) -> bool:
    """Whether the loop can run: float32 on a CPU, with numba and MKL."""
    return logits_NV.device.type == "cpu" and logits_NV.dtype == torch.float32 and mkl.available()


def exponentials(
    logits_NV: Float[Tensor, "N V"], bias_V: Float[Tensor, "V"] | None
) -> tuple[Float[Tensor, "N 1"], Float[Tensor, "N 1"]]:
    """Logits, the bias added, become e to the logit minus the row's highest, in place.

    Returns the highest logits and the sums of what has become of the rows.
    """
    num_rows, vocab_size = logits_NV.shape
    bias = logits_NV.new_zeros(vocab_size) if bias_V is None else bias_V.detach()
    highest_N, sums_N = logits_NV.new_empty(num_rows), logits_NV.new_empty(num_rows)
    num_parts = max(1, min(torch.get_num_threads(), num_rows // ROWS_PER_PART))
    _rows(
        num_rows=num_rows,
        num_parts=num_parts,
        logits_NV=logits_NV,
        bias_V=bias.contiguous(),
        highest_N=highest_N,
        sums_N=sums_N,
    )
    return highest_N.unsqueeze(1), sums_N.unsqueeze(1)


def serves_halves(hidden_NH: Float[Tensor, "N H"]) -> bool:
    """Whether `to_slopes` can run: bfloat16 on a CPU, with numba and MKL."""
    return hidden_NH.device.type == "cpu" and hidden_NH.dtype == torch.bfloat16 and mkl.available()


def to_slopes(
    logits_NV: Float[Tensor, "N V"],
    bias_V: Float[Tensor, "V"] | None,
    targets_N: Int[Tensor, "N"],
    weights_N: Float[Tensor, "N"],
    smoothing: float = 0.0,
) -> tuple[Float[Tensor, "N"], Float[Tensor, "N"], Float[Tensor, "V"]]:
    """Logits in bfloat16, the bias added, become the gradient of the weighted sum of the targets'
    log probabilities, in place; with `smoothing`, that share of each is the mean over all words.
    Returns the targets' log probabilities, their means over the vocabulary, and the sum of the
    gradients, in float32.
    """
    num_rows, vocab_size = logits_NV.shape
    if num_rows and not 0 <= int(targets_N.min()) <= int(targets_N.max()) < vocab_size:
        raise IndexError("a target is not in the vocabulary")
    bias = torch.zeros(vocab_size) if bias_V is None else bias_V.detach().float()
    num_parts = max(1, min(torch.get_num_threads(), num_rows // ROWS_PER_PART))
    logprobs_N, means_N = torch.empty(num_rows), torch.empty(num_rows)
    sums = torch.zeros(num_parts, vocab_size)
    _half_rows(
        num_rows=num_rows,
        num_parts=num_parts,
        logits_NV=logits_NV,
        bias_V=bias.contiguous(),
        targets_N=targets_N.contiguous(),
        weights_N=weights_N.float().contiguous(),
        shares=torch.tensor([1 - smoothing, smoothing / vocab_size]),
        logprobs_N=logprobs_N,
        means_N=means_N,
        scratch=torch.empty(num_parts, vocab_size),
        sums=sums,
    )
    return logprobs_N, means_N, sums.sum(0)


@pooled_loop
def _half_rows(
    logits_NV: Halves2,
    bias_V: Floats1,
    targets_N: Int64s,
    weights_N: Floats1,
    shares: Floats1,
    logprobs_N: Floats1,
    means_N: Floats1,
    scratch: Floats2,
    sums: Floats2,
    part: int,
    first: int,
    last: int,
) -> None:
    vocab_size = len(bias_V)
    row, own_sums = scratch[part], sums[part]
    for n in range(first, last):
        halves = logits_NV[n]
        top, mean = LOWEST, F32(0.0)
        for k in range(vocab_size):
            logit = widened(halves[k]) + bias_V[k]
            row[k] = logit
            mean += logit
            top = max(top, rank(logit))
        highest, target = ranked(top), targets_N[n]
        chosen = row[target]
        total = F32(0.0)
        for k in range(vocab_size):
            row[k] = exp(row[k] - highest)
            total += row[k]
        norm = highest + np.log(total)
        logprobs_N[n] = chosen - norm
        means_N[n] = mean / F32(vocab_size) - norm
        weight = weights_N[n]
        scale, spread = -weight / total, weight * shares[1]
        row[target] -= total * shares[0]
        for k in range(vocab_size):
            slope = row[k] * scale + spread
            halves[k] = halved(slope)
            own_sums[k] += slope


@pooled_loop
def _rows(
    logits_NV: Floats2,
    bias_V: Floats1,
    highest_N: Floats1,
    sums_N: Floats1,
    first: int,
    last: int,
) -> None:
    vocab_size = len(bias_V)
    for n in range(first, last):
        row = logits_NV[n]
        top = LOWEST
        for k in range(vocab_size):
            logit = row[k] + bias_V[k]
            row[k] = logit
            top = max(top, rank(logit))
        highest = ranked(top)
        total = F32(0.0)
        for k in range(vocab_size):
            row[k] = exp(row[k] - highest)
            total += row[k]
        highest_N[n] = highest
        sums_N[n] = total
