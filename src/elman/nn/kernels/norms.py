"""Compute the norms of many tensors on all threads, in one pass over memory.

torch takes the norm of a CPU's tensors one after the other on a single thread, which reads memory
at half the rate of two. Here every thread sums the squares of its part of each (`team.py`), a block
in float32 and the blocks in float64.

P tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from elman.nn.kernels import mkl
from elman.nn.kernels.loops import F32, Array, compiled
from elman.nn.kernels.team import Doubles2, Int64s, pooled_loop, view
from elman.nn.shapes import Float

FEWEST_NUMBERS = 1 << 18
"""Numbers in all tensors together that are worth waking the other threads for."""

BLOCK_SIZE = 1024
"""Squares that are summed in float32."""


def norms(tensors: Sequence[Tensor]) -> Float[Tensor, "P"]:
    """The 2-norm of each."""
    if not _serves(tensors):
        return torch.stack(torch._foreach_norm(list(tensors)))
    num_parts = torch.get_num_threads()
    squares = torch.empty(num_parts, len(tensors), dtype=torch.float64)
    _sums_of_squares(
        num_rows=num_parts,
        num_parts=num_parts,
        addresses=torch.tensor([tensor.data_ptr() for tensor in tensors]),
        sizes=torch.tensor([tensor.numel() for tensor in tensors]),
        squares=squares,
    )
    return squares.sum(0).sqrt_().float()


def _serves(tensors: Sequence[Tensor]) -> bool:
    """Whether the loop gains: many float32 numbers on a CPU, contiguous, with numba and MKL."""
    return (
        sum(tensor.numel() for tensor in tensors) >= FEWEST_NUMBERS
        and all(
            tensor.device.type == "cpu" and tensor.dtype == torch.float32 and tensor.is_contiguous()
            for tensor in tensors
        )
        and mkl.available()
    )


@pooled_loop
def _sums_of_squares(
    addresses: Int64s, sizes: Int64s, squares: Doubles2, num_parts: int, first: int, last: int
) -> None:
    """`squares` (parts, tensors) receives the sum of each part of each tensor."""
    for part in range(first, last):
        for i in range(len(sizes)):
            row = view(addresses[i], (sizes[i],), F32)
            begin, end = sizes[i] * part // num_parts, sizes[i] * (part + 1) // num_parts
            squares[part, i] = _sum_of_squares(row[begin:end])


@compiled
def _sum_of_squares(row: Array) -> Any:
    total: Any = 0.0
    for start in range(0, len(row), BLOCK_SIZE):
        block, some = row[start : start + BLOCK_SIZE], F32(0.0)
        for k in range(len(block)):
            some += block[k] * block[k]
        total += some
    return total
