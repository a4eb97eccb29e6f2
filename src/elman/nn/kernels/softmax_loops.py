"""Log probabilities under a softmax on CUDA, and their gradient in place of the logits, in Triton.

torch copies 16-bit logits to float32, and makes a second such matrix in the backward pass. Here the
logits stay as they are: read once for the log probabilities, read and overwritten once for the
gradient. Sums are in float32.

N rows, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from elman.nn.kernels.persistent_launch import on_device
from elman.nn.kernels.persistent_loops import tl, triton
from elman.nn.shapes import Float, Int


def logprobs(
    logits_NV: Float[Tensor, "N V"], targets_N: Int[Tensor, "N"]
) -> tuple[Float[Tensor, "N"], Float[Tensor, "N"]]:
    """The log probability of each row's target, and the logarithm of the row's sum of exponentials.

    The log probability is NaN if the target is not a word.
    """
    num_rows, vocab_size = logits_NV.shape
    found_N = logits_NV.new_empty(num_rows, dtype=torch.float32)
    norms_N = torch.empty_like(found_N)
    with on_device(logits_NV.device.index):
        _logprobs[(num_rows,)](
            logits_NV, targets_N.contiguous(), found_N, norms_N, vocab_size, BLOCK=2048
        )
    return found_N, norms_N


def to_slopes(
    logits_NV: Float[Tensor, "N V"],
    targets_N: Int[Tensor, "N"],
    norms_N: Float[Tensor, "N"],
    weights_N: Float[Tensor, "N"],
) -> None:
    """Logits become the gradient of the sum of the log probabilities, weighted, in place."""
    num_rows, vocab_size = logits_NV.shape
    grid = (num_rows, triton.cdiv(vocab_size, 2048))
    weights_N = weights_N.float().contiguous()
    with on_device(logits_NV.device.index):
        _to_slopes[grid](
            logits_NV, targets_N.contiguous(), norms_N, weights_N, vocab_size, BLOCK=2048
        )


@triton.jit
def _logprobs(logits, targets, found, norms, V, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = logits + row * V
    highest = tl.full([BLOCK], -1e30, tl.float32)  # A finite minimum: inf - inf would be NaN.
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, V, BLOCK):
        words = first + tl.arange(0, BLOCK)
        x = tl.load(at + words, mask=words < V, other=-float("inf")).to(tl.float32)
        new = tl.maximum(highest, x)
        total = total * tl.exp(highest - new) + tl.exp(x - new)
        highest = new
    top = tl.max(highest, 0)
    norm = top + tl.log(tl.sum(total * tl.exp(highest - top), 0))
    target = tl.load(targets + row)
    is_word = (target >= 0) & (target < V)
    chosen = tl.load(at + target, mask=is_word, other=float("nan")).to(tl.float32)
    tl.store(found + row, chosen - norm)
    tl.store(norms + row, norm)


@triton.jit
def _to_slopes(logits, targets, norms, weights, V, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    words = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = logits + row * V + words
    x = tl.load(at, mask=words < V, other=0).to(tl.float32)
    probability = tl.exp(x - tl.load(norms + row))
    hit = tl.where(words == tl.load(targets + row), 1.0, 0.0)
    slope = (hit - probability) * tl.load(weights + row)
    tl.store(at, slope.to(logits.dtype.element_ty), mask=words < V)
