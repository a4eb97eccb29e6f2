"""A few vectors times a large matrix, by all threads.

One core reads memory at a fraction of the rate of all of them together, so that a matrix too large
for a core's cache is multiplied by the team. For float32 torch does it; weights of one byte with a
scale per row, as everywhere in decoding (`loops.py`), are shared out over torch's threads here
(`team.py`).

B vectors, N rows, K columns.
"""

from __future__ import annotations

from typing import Any

import torch

from elman.nn.kernels import mkl
from elman.nn.kernels.loops import add_product, product
from elman.nn.kernels.team import Array, Floats1, Floats2, Int8s2, pooled_loop

SHARED_BYTES = 3 << 19
"""The smallest matrix that is worth waking the other threads for."""


def is_shared(num_bytes: int) -> bool:
    """Whether a matrix of this size is multiplied by the team."""
    return num_bytes >= SHARED_BYTES and torch.get_num_threads() > 1 and mkl.available()


def shared_product(w_NK: Array, scale_N: Array, bias_N: Array, x_BK: Array) -> Any:
    """x w' + bias, each row of w times its scale."""
    if not is_shared(w_NK.nbytes):
        return product(w_NK, scale_N, bias_N, x_BK)
    w, bias, x = map(torch.from_numpy, (w_NK, bias_N, x_BK))
    if w.dtype == torch.float32:
        return torch.addmm(bias, x, w.t()).numpy()
    out_BN = bias.expand(len(x), len(w)).clone(memory_format=torch.contiguous_format)
    _rows(
        num_rows=len(w),
        num_parts=torch.get_num_threads(),
        w_NK=w,
        scale_N=scale_N,
        x_BK=x,
        out_BN=out_BN,
    )
    return out_BN.numpy()


@pooled_loop
def _rows(
    w_NK: Int8s2, scale_N: Floats1, x_BK: Floats2, out_BN: Floats2, first: int, last: int
) -> None:
    add_product(w_NK[first:last], scale_N[first:last], x_BK, out_BN[:, first:last])
