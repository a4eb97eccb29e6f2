"""Products of a matrix and one vector, on a CPU, with matrices that are not in the cache.

MKL reads such a matrix at half the speed of the memory. The loops here read four rows at once, on
torch's threads.

G rows, I columns, P parts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from elman.nn.kernels import mkl
from elman.nn.kernels.loops import F32
from elman.nn.kernels.team import Floats1, Floats2, pooled_loop
from elman.nn.shapes import Float

FEWEST = 1 << 18
"""Numbers of a matrix, a mebibyte: smaller ones are in the cache, and the call costs more."""


def serves(vectors: Tensor, matrix: Tensor) -> bool:
    """Whether the loops can run, and pay: float32 on a CPU, with numba and MKL."""
    return (
        len(vectors) == 1
        and vectors.dim() == 2  # a step of several rows, time first, is a single one, too
        and matrix.numel() >= FEWEST
        and matrix.device.type == "cpu"
        and vectors.dtype == matrix.dtype == torch.float32
        and matrix.is_contiguous()
        and mkl.available()
    )


def times(matrix_GI: Float[Tensor, "G I"], vector_1I: Float[Tensor, "1 I"]) -> Float[Tensor, "1 G"]:
    """vector matrix^T."""
    out_1G = vector_1I.new_empty(1, len(matrix_GI))
    _times(
        num_rows=len(matrix_GI) // 4,
        num_parts=torch.get_num_threads(),
        matrix_GI=matrix_GI,
        vector_I=vector_1I.contiguous().view(-1),
        out_G=out_1G.view(-1),
    )
    return out_1G


def transposed_times(
    matrix_GI: Float[Tensor, "G I"], vector_1G: Float[Tensor, "1 G"]
) -> Float[Tensor, "1 I"]:
    """vector matrix."""
    num_parts = torch.get_num_threads()
    out_PI = vector_1G.new_empty(num_parts, matrix_GI.shape[1])
    _transposed_times(
        num_rows=len(matrix_GI) // 4,
        num_parts=num_parts,
        matrix_GI=matrix_GI,
        vector_G=vector_1G.contiguous().view(-1),
        out_PI=out_PI,
    )
    return out_PI if num_parts == 1 else out_PI.sum(dim=0, keepdim=True)


@pooled_loop
def _times(
    matrix_GI: Floats2,
    vector_I: Floats1,
    out_G: Floats1,
    part: int,
    num_parts: int,
    first: int,
    last: int,
) -> None:
    """Rows 4 first to 4 last; the last part also has those that are left."""
    num_rows, size = matrix_GI.shape
    for g in range(4 * first, 4 * last, 4):
        one, two, three, four = matrix_GI[g], matrix_GI[g + 1], matrix_GI[g + 2], matrix_GI[g + 3]
        a, b, c, d = F32(0.0), F32(0.0), F32(0.0), F32(0.0)
        for i in range(size):
            x = vector_I[i]
            a += one[i] * x
            b += two[i] * x
            c += three[i] * x
            d += four[i] * x
        out_G[g], out_G[g + 1], out_G[g + 2], out_G[g + 3] = a, b, c, d
    if part == num_parts - 1:
        for g in range(4 * last, num_rows):
            row, a = matrix_GI[g], F32(0.0)
            for i in range(size):
                a += row[i] * vector_I[i]
            out_G[g] = a


@pooled_loop
def _transposed_times(
    matrix_GI: Floats2,
    vector_G: Floats1,
    out_PI: Floats2,
    part: int,
    num_parts: int,
    first: int,
    last: int,
) -> None:
    num_rows, size = matrix_GI.shape
    out_I = out_PI[part]
    out_I[:] = F32(0.0)
    for g in range(4 * first, 4 * last, 4):
        one, two, three, four = matrix_GI[g], matrix_GI[g + 1], matrix_GI[g + 2], matrix_GI[g + 3]
        a, b, c, d = vector_G[g], vector_G[g + 1], vector_G[g + 2], vector_G[g + 3]
        for i in range(size):
            out_I[i] += one[i] * a + two[i] * b + three[i] * c + four[i] * d
    if part == num_parts - 1:
        for g in range(4 * last, num_rows):
            row, a = matrix_GI[g], vector_G[g]
            for i in range(size):
                out_I[i] += row[i] * a
