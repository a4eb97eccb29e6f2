"""Products with float32 sums of bfloat16 matrices, by oneDNN's block products (`mkl.py`).

The right side of a product is packed once for many products: cut into panels of some columns, each
in one piece of memory that stays in a core's cache while the rows of the left side pass by. In a
panel two rows are interleaved, pair by pair, as the processor reads them. `Panels` holds such a
matrix; compiled loops multiply by it with `multiply_panels`, and `product` multiplies all rows of a
matrix on torch's threads.

M rows, K inner, N columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from elman.nn.kernels import mkl
from elman.nn.kernels.loops import F32, Array, compiled, halved, inlined
from elman.nn.kernels.memory import half_room, room
from elman.nn.kernels.mkl import brgemm_bfloat16, brgemm_release
from elman.nn.kernels.team import (
    Floats1,
    Floats2,
    Halves1,
    Halves2,
    Int64s2,
    Records,
    barrier,
    pooled_loop,
    team_size,
    thread_number,
    view,
)

PANEL_SIZE = 1 << 16
"""Numbers of a panel, at most, unless it would be narrower than `NARROWEST`."""
NARROWEST, WIDEST = 64, 512
"""Columns of a panel."""
LEFT_SIZE, FEWEST_AT_ONCE, MOST_AT_ONCE = 1 << 18, 64, 512
"""Numbers of the left side that are multiplied by all panels before the next ones: with a panel
they stay in a core's cache. The rows that this makes are within limits."""

STRIP, SUM_WIDTH, SUM_ROWS = 32, 128, 1024
"""For sums over all rows (`sums_over_rows`): columns of a right matrix that are turned at once,
columns of the left one in a panel, and rows that are multiplied at once."""
SUM_STRIDE = SUM_ROWS + 32
"""Numbers from one turned column to the next: a power of two would use few places of a cache."""

STRIP_ORDER = Records("matrix", "out", "stride", "out_stride", "columns")
StripOrders = Annotated[Any, STRIP_ORDER]
"""Columns of a right matrix: address of the first one, and of its sums; both row lengths."""

PACK_ORDER = Records("matrix", "stride", "transposed", "inner", "width", "target")
PackOrders = Annotated[Any, PACK_ORDER]
"""Panels to fill: address of their first number in a float32 matrix, its row length, whether
columns of the panel are rows of the matrix; rows and columns of the panel; where to."""


def even(size: int) -> int:
    """`size`, rounded up: bfloat16 is multiplied in pairs, so rows are padded by zeros."""
    return size + size % 2


@inlined
def panel_width(inner: int) -> int:
    return max(NARROWEST, min(WIDEST, PANEL_SIZE // max(1, inner) // NARROWEST * NARROWEST))


class Panels:
    """The right sides of products, packed: matrices (K, N) in float32, or transposed (N, K)."""

    def __init__(self, matrices: Sequence[Tensor], *, transposed: bool, num_threads: int) -> None:
        kept, self.targets, orders = [], [], []
        for matrix in matrices:
            matrix = matrix.detach() if matrix.stride(1) == 1 else matrix.detach().contiguous()
            kept.append(matrix)
            inner, outer = reversed(matrix.shape) if transposed else matrix.shape
            target, width = half_room(even(inner) * outer), panel_width(even(inner))
            self.targets.append(target)
            for first in range(0, outer, width):
                start = first * (matrix.stride(0) if transposed else 1)
                place = target.data_ptr() + 2 * first * even(inner)
                orders.append(
                    (
                        matrix.data_ptr() + 4 * start,
                        matrix.stride(0),
                        transposed,
                        inner,
                        min(width, outer - first),
                        place,
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


def product(
    left_MK: Tensor, right: Panels, out_MN: Tensor, num_threads: int, times: int = 1
) -> None:
    """out = left times the first matrix of `right`; `left` has rows of even length. Repeats it
    `times`, to time it."""
    num_rows = len(left_MK)
    _product(
        num_rows=num_rows,
        num_parts=max(1, min(num_threads, num_rows)),
        left=left_MK,
        right=right.addresses[0],
        out=out_MN,
        times=times,
    )


def products_over_rows(
    left_NG: Tensor, rights: Sequence[tuple[Tensor, int]], num_threads: int
) -> list[Tensor]:
    """The transpose of `left_NG` times each of `rights` (N, K), of which the first so many columns
    count: sums over all rows, in float32. All are bfloat16 and contiguous.

    On several threads with tiles; else by torch, which is as fast there and rounds to bfloat16."""
    if not has_tiles() or num_threads == 1:
        return [torch.mm(left_NG.t(), matrix)[:, :size].float() for matrix, size in rights]
    return sums_over_rows(left_NG, rights, num_threads)


def sums_over_rows(
    left_NG: Tensor, rights: Sequence[tuple[Tensor, int]], num_threads: int
) -> list[Tensor]:
    """The same by block products."""
    num_columns = left_NG.shape[1]
    found, strips = [], []
    for matrix, size in rights:
        out = room(num_columns, size)
        found.append(out)
        for first in range(0, size, STRIP):
            places = matrix.data_ptr() + 2 * first, out.data_ptr() + 4 * first
            strips.append((*places, matrix.shape[1], size, min(STRIP, size - first)))
    num_panels = -(-num_columns // SUM_WIDTH)
    parts = _shares(len(strips), num_panels, num_threads)
    _sum_products(
        num_rows=len(parts),
        num_parts=len(parts),
        left=left_NG,
        strips=np.array(strips, STRIP_ORDER.dtype),
        parts=np.array(parts),
        turned=half_room(2 * len(strips) * STRIP * SUM_STRIDE),
        paired=half_room(2 * num_columns * SUM_ROWS),
        sums=room(len(strips) * STRIP * num_columns),
    )
    return found


def _shares(num_strips: int, num_panels: int, num_threads: int) -> list[tuple[int, ...]]:
    """Parts of about equal size: first and last strip, first and last panel of each."""

    def largest(across: int) -> int:
        return -(-num_strips // across) * -(-num_panels // (num_threads // across))

    across = min(range(1, min(num_strips, num_threads) + 1), key=largest)
    down = min(num_panels, num_threads // across)
    rows = [num_strips * i // across for i in range(across + 1)]
    columns = [num_panels * i // down for i in range(down + 1)]
    return [(*r, *c) for r in pairwise(rows) for c in pairwise(columns)]


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
        target = view(order.target, ((inner + 1) // 2, width), np.uint32)
        if order.transposed:
            columns = view(order.matrix, (width, stride), np.float32)
            for pair in range(inner // 2):
                row, k = target[pair], 2 * pair
                for n in range(width):
                    row[n] = _joined(columns[n, k], columns[n, k + 1])
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
def _product(left: Halves2, right: int, out: Floats2, times: int, first: int, last: int) -> None:
    inner, outer = left.shape[1], out.shape[1]
    most = max(FEWEST_AT_ONCE, min(MOST_AT_ONCE, LEFT_SIZE // inner // 16 * 16))
    for _ in range(times):
        for start in range(first, last, most):
            rows = min(most, last - start)
            left_address = left.ctypes.data + 2 * start * inner
            out_address = out.ctypes.data + 4 * start * outer
            multiply_panels(left_address, inner, right, rows, inner, outer, 0, out_address, outer)
    brgemm_release(1)


@pooled_loop
def _sum_products(
    left: Halves2,
    strips: StripOrders,
    parts: Int64s2,
    turned: Halves1,
    paired: Halves1,
    sums: Floats1,
) -> None:
    """Some rows at a time: all threads turn the right matrices and pack the left one, then each
    multiplies its part. There are two of each buffer, so that threads meet once per turn."""
    num_rows, num_columns = left.shape
    num_panels, height = (num_columns + SUM_WIDTH - 1) // SUM_WIDTH, len(strips) * STRIP
    for start in range(0, num_rows, SUM_ROWS):
        buffer, rows = start // SUM_ROWS % 2, min(SUM_ROWS, num_rows - start)
        padded = (rows + 63) // 64 * 64
        turned_at = turned.ctypes.data + 2 * buffer * height * SUM_STRIDE
        paired_at = paired.ctypes.data + 2 * buffer * num_columns * SUM_ROWS
        for job in range(thread_number(), len(strips) + 4 * num_panels, team_size()):
            if job < len(strips):
                _turn(strips[job], start, rows, padded, turned_at + 2 * job * STRIP * SUM_STRIDE)
            else:
                panel, quarter = (job - len(strips)) // 4, (job - len(strips)) % 4
                first = panel * SUM_WIDTH
                last = min(num_columns, first + SUM_WIDTH)
                target = view(
                    paired_at + 2 * first * SUM_ROWS, (SUM_ROWS // 2, last - first), np.uint32
                )
                pairs = padded // 2
                for pair in range(pairs * quarter // 4, pairs * (quarter + 1) // 4):
                    _join(left, start + 2 * pair, first, last, target[pair])
        barrier()
        for part in range(thread_number(), len(parts), team_size()):
            top, bottom, begin, end = parts[part]
            for panel in range(begin, end):
                first = panel * SUM_WIDTH
                own = min(SUM_WIDTH, num_columns - first)
                brgemm_bfloat16(
                    *((bottom - top) * STRIP, own, padded, SUM_STRIDE, own, own),
                    *(start > 0, turned_at + 2 * top * STRIP * SUM_STRIDE),
                    *(paired_at + 2 * first * SUM_ROWS, _sums_at(sums, first, height, top, own), 1),
                )
    for part in range(thread_number(), len(parts), team_size()):
        top, bottom, begin, end = parts[part]
        for panel in range(begin, end):
            first = panel * SUM_WIDTH
            own = min(SUM_WIDTH, num_columns - first)
            found = view(sums.ctypes.data + 4 * first * height, (height, own), np.float32)
            for number in range(top, bottom):
                strip = strips[number]
                out = view(strip.out, (num_columns, strip.out_stride), np.float32)
                for n in range(own):
                    for k in range(strip.columns):
                        out[first + n, k] = found[number * STRIP + k, n]
    brgemm_release(1)


@inlined
def _sums_at(sums: Array, first: int, height: int, top: int, own: int) -> Any:
    """Address of a part's sums in a panel."""
    return sums.ctypes.data + 4 * (first * height + top * STRIP * own)


@compiled
def _turn(strip: Any, start: int, rows: int, padded: int, target: int) -> None:
    """Transpose some rows of some columns, two by two; what is beyond the matrix is zero."""
    stride, pairs = strip.stride // 2, (strip.columns + 1) // 2
    source = view(strip.matrix + 4 * start * stride, (rows, stride), np.uint32)
    out = view(target, (STRIP, SUM_STRIDE // 2), np.uint32)
    low, high = np.uint32(0xFFFF), np.uint32(0xFFFF0000)
    for first in range(0, rows - rows % 2, STRIP):
        for k in range(pairs):
            even_column, odd_column = out[2 * k], out[2 * k + 1]
            for n in range(first // 2, min(first + STRIP, rows - rows % 2) // 2):
                upper, lower = source[2 * n, k], source[2 * n + 1, k]
                even_column[n] = np.uint32((upper & low) | (lower << np.uint32(16)))
                odd_column[n] = np.uint32((upper >> np.uint32(16)) | (lower & high))
    if rows % 2:
        for k in range(pairs):
            last = source[rows - 1, k]
            out[2 * k, rows // 2] = last & low
            out[2 * k + 1, rows // 2] = last >> np.uint32(16)
    for k in range(2 * pairs):
        out[k, (rows + 1) // 2 : padded // 2] = np.uint32(0)
    for k in range(2 * pairs, STRIP):
        out[k, : padded // 2] = np.uint32(0)


@inlined
def _join(left: Array, row: int, first: int, last: int, target: Array) -> None:
    """Interleave two rows; those beyond the matrix are zero."""
    upper = left[min(row, len(left) - 1), first:last]
    lower = left[min(row + 1, len(left) - 1), first:last]
    keep = np.uint32(0xFFFF if row < len(left) else 0)
    keep_lower = np.uint32(0xFFFF0000 if row + 1 < len(left) else 0)
    for n in range(last - first):
        target[n] = np.uint32(
            (np.uint32(upper[n]) & keep) | ((np.uint32(lower[n]) << np.uint32(16)) & keep_lower)
        )
