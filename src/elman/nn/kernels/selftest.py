"""`python -m elman.nn.kernels.selftest`: call every private function of `mkl.py` once.

It runs in a process of its own, so that a function that has changed can crash nothing else. It
packs matrices, multiplies by them on two threads that meet at a barrier, and compares with torch.
With the argument `onednn` it does so with oneDNN's functions. It exits with 0 if all results agree.
"""

from __future__ import annotations

import sys

import numpy as np
import torch

from elman.nn.kernels import blocks, cpu_loops, mkl
from elman.nn.kernels.cpu_loops import multiply_at, row_address
from elman.nn.kernels.loops import F32
from elman.nn.kernels.mkl import NO_TRANSPOSE, ROW_MAJOR, TRANSPOSE, set_threads, sgemm_compute
from elman.nn.kernels.team import Floats2, Int64s, barrier, pooled_loop, team_size, thread_number


@pooled_loop
def _products(
    x: Floats2, packed: Int64s, product: Floats2, square: Floats2, num_parts: int
) -> None:
    """product = x W', each thread with a half of W's rows; square = product' x."""
    set_threads(1)
    rows, inner = x.shape
    width = product.shape[1]
    half = width // 2
    for part in range(thread_number(), 2, team_size()):
        out = row_address(product, 0) + 4 * half * part
        multiply_at(row_address(x, 0), inner, packed[part], rows, inner, half, 0.0, out, width)
    barrier()
    if thread_number() == 0:
        sgemm_compute(
            *(ROW_MAJOR, TRANSPOSE, NO_TRANSPOSE, width, inner, rows),
            *(row_address(product, 0), width, row_address(x, 0), inner),
            *(F32(0.0), row_address(square, 0), inner),
        )
    set_threads(0)


def float32(in_panels: bool) -> None:
    """Raise an error where products in float32 differ; `in_panels` are oneDNN's."""
    torch.manual_seed(0)
    x, weight = torch.randn(7, 33), torch.randn(48, 33)
    halves = weight[:24], weight[24:]
    targets = [mkl.room_for(half, len(x), transposed=True) for half in halves]
    orders = [
        (half.data_ptr(), 33, target.data_ptr(), 1, len(x), 24, 33, in_panels)
        for half, target in zip(halves, targets, strict=True)
    ]
    records = np.array(orders, cpu_loops.PACK_ORDER.dtype)
    cpu_loops.pack(num_rows=2, num_parts=2, num_threads=2, orders=records)
    product, square = torch.empty(7, 48), torch.empty(48, 33)
    _products(
        num_rows=2,
        num_parts=2,
        num_threads=2,
        x=x,
        packed=torch.tensor([target.data_ptr() for target in targets]),
        product=product,
        square=square,
    )
    torch.testing.assert_close(product, x @ weight.t(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(square, product.t() @ x, rtol=1e-4, atol=1e-4)
    mkl.packed(weight, len(x))  # through ctypes, as decoding does


def onednn() -> None:
    """Raise an error where products of oneDNN differ."""
    float32(in_panels=True)
    if not blocks.has_bfloat16():
        return
    torch.manual_seed(0)
    for inner, outer in ((33, 200), (1024, 72)):
        weight, left = torch.randn(outer, inner), torch.zeros(300, inner + inner % 2)
        left[:, :inner] = torch.randn(300, inner)
        left, out = left.bfloat16(), torch.empty(300, outer)
        for matrix, transposed in ((weight, True), (weight.t().contiguous(), False)):
            panels = blocks.Panels([matrix], transposed=transposed, num_threads=2)
            blocks.product(left, panels, out, 2)
            expected = left[:, :inner].float() @ weight.bfloat16().float().t()
            torch.testing.assert_close(out, expected, rtol=1e-3, atol=1e-3)


if __name__ == "__main__":
    onednn() if sys.argv[1:] == ["onednn"] else float32(in_panels=False)
