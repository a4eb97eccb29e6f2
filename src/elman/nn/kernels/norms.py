"""The sizes of many gradients, by all threads and in one pass over memory.

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

from elman.nn.kernels import mkl, team
from elman.nn.kernels.loops import F32, compiled
from elman.nn.kernels.team import Array, Given, doubles, floats, numbers, team_size, thread_number
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
    flat = [tensor.view(-1) for tensor in tensors]
    team.share(_task, num_parts, num_parts, [squares, *flat])
    return squares.sum(0).sqrt_().float()


def _serves(tensors: Sequence[Tensor]) -> bool:
    """Plenty of float32 on a CPU, row by row, with numba and MKL at hand."""
    return (
        sum(tensor.numel() for tensor in tensors) >= FEWEST_NUMBERS
        and all(
            tensor.device.type == "cpu" and tensor.dtype == torch.float32 and tensor.is_contiguous()
            for tensor in tensors
        )
        and mkl.available()
    )


@team.Task
def _task(given: Given) -> None:
    """Sums of squares by part and tensor, the tensors."""
    num_parts = numbers(given)[0]
    squares = doubles(given, 1)
    for part in range(thread_number(), num_parts, team_size()):
        for i in range(squares.shape[1]):
            row = floats(given, 2 + i)[0, 0]
            first, last = len(row) * part // num_parts, len(row) * (part + 1) // num_parts
            squares[part, i] = _sum_of_squares(row[first:last])


@compiled
def _sum_of_squares(row: Array) -> Any:
    total: Any = 0.0
    for start in range(0, len(row), BLOCK_SIZE):
        block, some = row[start : start + BLOCK_SIZE], F32(0.0)
        for k in range(len(block)):
            some += block[k] * block[k]
        total += some
    return total
