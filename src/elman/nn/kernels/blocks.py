"""Products of bfloat16 or float32 matrices with float32 sums, by oneDNN's blocks (`mkl.py`).

The right side of a product is packed once for many products: cut into panels of some columns, each
in one piece of memory that stays in a core's cache while the rows of the left side pass by. In a
panel two rows are interleaved, pair by pair, as the processor reads them. `Panels` holds such a
matrix; compiled loops multiply by it with `multiply_panels`, and `product` multiplies all rows of a
matrix on torch's threads.

M rows, K inner, N columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from elman.nn.kernels import mkl
from elman.nn.kernels.loops import F32, compiled, halved, inlined
from elman.nn.kernels.memory import half_room
from elman.nn.kernels.mkl import brgemm_bfloat16, brgemm_release
from elman.nn.kernels.team import Floats2, Halves2, Records, pooled_loop, view

PANEL_SIZE = 1 << 16
"""Numbers of a panel, at most, unless it would be narrower than `NARROWEST`."""
NARROWEST, WIDEST = 64, 512
"""Columns of a panel."""
LEFT_SIZE, FEWEST_AT_ONCE, MOST_AT_ONCE = 1 << 18, 64, 512
"""Numbers of the left side that are multiplied by all panels before the next ones: with a panel
they stay in a core's cache. The rows that this makes are within limits."""

PACK_ORDER = Records("matrix", "stride", "transposed", "inner", "width", "target", "half")
PackOrders = Annotated[Any, PACK_ORDER]
"""Panels to fill: address of their first number in a float32 matrix, its row length, whether
columns of the panel are rows of the matrix; rows and columns of the panel; where to; whether in
bfloat16."""


def even(size: int) -> int:
    """`size`, rounded up: bfloat16 is multiplied in pairs, so rows are padded by zeros."""
    return size + size % 2


@inlined
def panel_width(inner: int) -> int:
    return max(NARROWEST, min(WIDEST, PANEL_SIZE // max(1, inner) // NARROWEST * NARROWEST))


class Panels:
    """The right sides of products, packed: matrices (K, N) in float32, or transposed (N, K). In
    bfloat16, or as they are if not `half`."""

    def __init__(
        self, matrices: Sequence[Tensor], *, transposed: bool, num_threads: int, half: bool = True
    ) -> None:
        kept, self.targets, orders = [], [], []
        for matrix in matrices:
            matrix = matrix.detach() if matrix.stride(1) == 1 else matrix.detach().contiguous()
            kept.append(matrix)
            inner, outer = reversed(matrix.shape) if transposed else matrix.shape
            padded = even(inner) if half else 2 * inner  # in halves of 4 bytes
            target, width = half_room(padded * outer), panel_width(padded)
            self.targets.append(target)
            for first in range(0, outer, width):
                start = first * (matrix.stride(0) if transposed else 1)
                place = target.data_ptr() + 2 * first * padded
                orders.append(
                    (
                        matrix.data_ptr() + 4 * start,
                        matrix.stride(0),
                        transposed,
                        inner,
                        min(width, outer - first),
                        place,
                        half,
                    )
                )
        threads = max(1, min(num_threads, len(orders)))
        _pack(
            num_rows=len(orders),
            num_parts=threads,
            orders=np.array(orders, PACK_ORDER.dtype),
        )

    @property
    def addresses(self) -> list[int]:
        return [target.data_ptr() for target in self.targets]


def product(left_MK: Tensor, right: Panels, out_MN: Tensor, num_threads: int) -> None:
    """out = left times the first matrix of `right`; `left` has rows of even length."""
    num_rows = len(left_MK)
    _product(
        num_rows=num_rows,
        num_parts=max(1, min(num_threads, num_rows)),
        left=left_MK,
        right=right.addresses[0],
        out=out_MN,
    )


def problem() -> str:
    """Why compiled loops do not multiply in bfloat16 here; "" where they do."""
    if not has_bfloat16():
        return "this processor has no products in bfloat16"
    return mkl.onednn_problem()


def has_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16; others emulate it."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def has_tiles() -> bool:
    """Whether the processor multiplies tiles of 16 rows (AMX)."""
    return bool(torch.cpu._is_amx_tile_supported())


@pooled_loop
def _pack(orders: PackOrders, first: int, last: int) -> None:
    for i in range(first, last):
        order = orders[i]
        inner, width, stride = order.inner, order.width, order.stride
        if not order.half:
            pack_floats(order)
            continue
        target = view(order.target, ((inner + 1) // 2, width), np.uint32)
        if order.transposed:
            columns = view(order.matrix, (width, stride), np.float32)
            # Join along the rows, then transpose: half the time of both at once.
            joined = np.empty((width, inner // 2), np.uint32)
            for n in range(width):
                source, row = columns[n], joined[n]
                for pair in range(inner // 2):
                    row[pair] = _joined(source[2 * pair], source[2 * pair + 1])
            for pair in range(inner // 2):
                row = target[pair]
                for n in range(width):
                    row[n] = joined[n, pair]
            for n in range(width if inner % 2 else 0):
                target[inner // 2, n] = _joined(columns[n, inner - 1], F32(0.0))
        else:
            rows = view(order.matrix, (inner, stride), np.float32)
            for pair in range(inner // 2):
                row, upper, lower = target[pair], rows[2 * pair], rows[2 * pair + 1]
                for n in range(width):
                    row[n] = _joined(upper[n], lower[n])
            for n in range(width if inner % 2 else 0):
                target[inner // 2, n] = _joined(rows[inner - 1, n], F32(0.0))


@compiled
def pack_floats(order: Any) -> None:
    """Fill a panel in float32."""
    inner, width, stride = order.inner, order.width, order.stride
    target = view(order.target, (inner, width), np.float32)
    if order.transposed:
        columns = view(order.matrix, (width, stride), np.float32)
        for k in range(inner):
            row = target[k]
            for n in range(width):
                row[n] = columns[n, k]
    else:
        rows = view(order.matrix, (inner, stride), np.float32)
        for k in range(inner):
            row, source = target[k], rows[k]
            for n in range(width):
                row[n] = source[n]


@inlined
def _joined(first: Any, second: Any) -> Any:
    """Two numbers of a column as bfloat16, the first in the lower half of the bits."""
    upper = np.uint32(halved(second)) << np.uint32(16)
    return np.uint32(np.uint32(halved(first)) | np.uint32(upper))


@inlined
def multiply_panels(
    left: Any,
    stride: int,
    panels: Any,
    rows: int,
    inner: int,
    outer: int,
    adds: bool,
    out: Any,
    out_stride: int,
) -> None:
    """out (float32) = left (bfloat16) times a packed matrix (inner by outer), or added to it;
    `inner` is even. All but sizes are addresses."""
    width = panel_width(inner)
    for first in range(0, outer, width):
        own = min(width, outer - first)
        panel = panels + 2 * first * inner
        brgemm_bfloat16(
            *(rows, own, inner, stride, own, out_stride),
            *(adds, left, panel, out + 4 * first, 1),
        )


@pooled_loop
def _product(left: Halves2, right: int, out: Floats2, first: int, last: int) -> None:
    inner, outer = left.shape[1], out.shape[1]
    most = max(FEWEST_AT_ONCE, min(MOST_AT_ONCE, LEFT_SIZE // inner // 16 * 16))
    for start in range(first, last, most):
        rows = min(most, last - start)
        left_address = left.ctypes.data + 2 * start * inner
        out_address = out.ctypes.data + 4 * start * outer
        multiply_panels(left_address, inner, right, rows, inner, outer, 0, out_address, outer)
    brgemm_release(1)
