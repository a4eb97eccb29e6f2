"""Exponentials of a chunk of logits, in place, as a task for torch's threads (`team.py`).

torch has max, difference, exponential and sum as four passes over memory; here a row is read once
and written once, the bias added on the way.

N rows, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from elman.nn.kernels import mkl, team
from elman.nn.kernels.loops import F32, LOWEST, compiled, exp, rank, ranked
from elman.nn.kernels.team import Array, Given, edge, floats, numbers, team_size, thread_number
from elman.nn.shapes import Float

ROWS_PER_PART = 8
"""Rows that are worth handing to a thread."""


def serves(logits_NV: Float[Tensor, "N V"]) -> bool:
    """float32 on a CPU, with numba and MKL at hand."""
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
    team.share(_task, num_rows, num_parts, (logits_NV, bias.contiguous(), highest_N, sums_N))
    return highest_N.unsqueeze(1), sums_N.unsqueeze(1)


@team.Task
def _task(given: Given) -> None:
    for part in range(thread_number(), numbers(given)[0], team_size()):
        _rows(
            floats(given, 1)[0],
            floats(given, 2)[0, 0],
            floats(given, 3)[0, 0],
            floats(given, 4)[0, 0],
            edge(given, part),
            edge(given, part + 1),
        )


@compiled
def _rows(
    logits_NV: Array, bias_V: Array, highest_N: Array, sums_N: Array, first: int, last: int
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
