"""Exponentials of a chunk of logits, in place, on torch's threads (`team.py`).

torch has max, difference, exponential and sum as four passes over memory; here a row is read once
and written once, with the bias added.

N rows, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from elman.nn.kernels import mkl
from elman.nn.kernels.loops import F32, LOWEST, exp, rank, ranked
from elman.nn.kernels.team import Floats1, Floats2, pooled_loop
from elman.nn.shapes import Float

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
