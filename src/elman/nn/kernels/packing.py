"""Matrices packed once for many products, by MKL or in panels for oneDNN (`cpu_loops.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from elman.nn.kernels import cpu_loops, mkl
from elman.nn.kernels.memory import room
from elman.nn.kernels.products import ONEDNN


class PackedFor(NamedTuple):
    """A matrix to be packed, as it is or transposed, for the rows of each part."""

    matrix: Tensor
    transposed: bool = False


def pack(
    wanted: Sequence[tuple[PackedFor, int]],
    products: str,
    num_threads: int,
    make: Callable[[int], Tensor] = room,
) -> list[Tensor]:
    """Pack each matrix for products with a number of rows, in the threads of the loop."""
    matrices, targets, orders = [], [], []
    for (matrix, transposed), num_rows in wanted:
        matrix = matrix.detach() if matrix.stride(1) == 1 else matrix.detach().contiguous()
        target = mkl.room_for(matrix, num_rows, transposed=transposed, make=make)
        matrices.append(matrix)  # kept until it is packed
        targets.append(target)
        if matrix.numel():
            inner, outer = reversed(matrix.shape) if transposed else matrix.shape
            place = matrix.data_ptr(), matrix.stride(0), target.data_ptr()
            orders.append((*place, transposed, num_rows, outer, inner, products == ONEDNN))
    records = np.array(orders, cpu_loops.PACK_ORDER.dtype)
    threads = max(1, min(num_threads, len(orders)))
    cpu_loops.pack(num_rows=len(orders), num_parts=threads, orders=records)
    return targets
