"""A few vectors times a large matrix, its rows shared out over torch's threads (`team.py`).

One core reads memory at a fraction of the rate of all of them together, so that a matrix too large
for a core's cache is multiplied by the team. Weights are float32, or one byte each with a scale per
row, as everywhere in decoding (`loops.py`).

B vectors, N rows, K columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from elman.nn.kernels import mkl, team
from elman.nn.kernels.loops import add_product, product
from elman.nn.kernels.team import Array, Given, edge, floats, numbers, team_size, thread_number

SHARED_BYTES = 3 << 19
"""The smallest matrix that is worth waking the other threads for."""


def is_shared(num_bytes: int) -> bool:
    """Whether a matrix of this size is multiplied by the team."""
    return num_bytes >= SHARED_BYTES and torch.get_num_threads() > 1 and mkl.available()


def shared_product(w_NK: Array, scale_N: Array, bias_N: Array, x_BK: Array) -> Any:
    """x w' + bias, each row of w times its scale."""
    if not is_shared(w_NK.nbytes):
        return product(w_NK, scale_N, bias_N, x_BK)
    out_BN = np.empty((len(x_BK), len(w_NK)), np.float32)
    out_BN[:] = bias_N
    task = _int8_task if w_NK.dtype == np.int8 else _float_task
    arrays = [torch.from_numpy(array) for array in (w_NK, scale_N, x_BK, out_BN)]
    team.share(task, len(w_NK), torch.get_num_threads(), arrays)
    return out_BN


@team.Task
def _float_task(given: Given) -> None:
    for part in range(thread_number(), numbers(given)[0], team_size()):
        first, last = edge(given, part), edge(given, part + 1)
        add_product(
            floats(given, 1)[0, first:last],
            floats(given, 2)[0, 0, first:last],
            floats(given, 3)[0],
            floats(given, 4)[0, :, first:last],
        )


@team.Task
def _int8_task(given: Given) -> None:
    for part in range(thread_number(), numbers(given)[0], team_size()):
        first, last = edge(given, part), edge(given, part + 1)
        add_product(
            team.small_wholes(given, 1)[first:last],
            floats(given, 2)[0, 0, first:last],
            floats(given, 3)[0],
            floats(given, 4)[0, :, first:last],
        )
