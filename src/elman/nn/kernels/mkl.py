"""The matrix products inside compiled loops: MKL's packed `sgemm`, which torch brings along.

A loop over time multiplies by the same recurrent matrix at every step, and plain `sgemm` brings
that matrix into the processor's order anew each time. MKL has it packed once (`cpu_tasks.pack`).
Compiled loops call it by its address, outside the interpreter. Builds of torch without MKL (other
processors) do not have these functions; `available` says so, and the kernel is not chosen.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elman.nn.kernels.loops import numba
from elman.nn.kernels.memory import room

ROW_MAJOR, NO_TRANSPOSE, TRANSPOSE, PACKED, PACK_B = 101, 111, 112, 151, 162
"""MKL's numbers for what they say."""


_NAMES = (
    *("cblas_sgemm_compute", "cblas_sgemm_pack", "MKL_Set_Num_Threads_Local"),
    *("GOMP_parallel", "GOMP_barrier", "omp_get_thread_num", "omp_get_num_threads"),
)
"""The functions that compiled code or this package call."""


@lru_cache(None)
def available() -> bool:
    """Whether numba is here and torch has brought MKL; makes its functions known to numba."""
    if numba is None or not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        return False
    try:
        bind()
    except (OSError, AttributeError):
        return False
    return True


@lru_cache(None)
def bind() -> None:
    """Make the functions known to numba; AttributeError where torch's libraries lack one."""
    functions, binding = library(), import_module("llvmlite.binding")
    for name in _NAMES:
        address = ctypes.cast(getattr(functions, name), ctypes.c_void_p).value
        binding.add_symbol(f"elman_{name}", address)


def external(name: str, result: str, *arguments: str) -> Any:
    """A function of torch's libraries, for compiled code to call."""
    if numba is None:
        return None
    types = [getattr(numba.types, argument) for argument in arguments]
    signature = getattr(numba.types, result)(*types)
    return numba.types.ExternalFunction(f"elman_{name}", signature)


_INTS = ("int32",) * 6
sgemm_compute = external(
    "cblas_sgemm_compute",
    "void",
    *_INTS,
    *("int64", "int32", "int64", "int32", "float32", "int64", "int32"),
)
"""layout, transposes of A and B, m, n, k, A, its row length, B, its row length, beta, C, its row
length: C = A B + beta C, addresses as integers."""

set_threads = external("MKL_Set_Num_Threads_Local", "int32", "int32")
"""How many threads MKL may use when called from this thread; 0 for its own choice."""


sgemm_pack = external("cblas_sgemm_pack", "void", *_INTS, "float32", "int64", "int32", "int64")
"""layout, which side, transpose, m, n, k, factor, matrix, its row length, where to."""


def room_for(matrix: Tensor, num_rows: int, *, transposed: bool = False) -> Tensor:
    """Memory for `matrix` (or its transpose) packed as the right side of products with `num_rows`
    rows on the left."""
    if not matrix.numel():
        return torch.empty(0)
    inner, outer = reversed(matrix.shape) if transposed else matrix.shape
    size = packed_size(num_rows, outer, inner)
    buffer = room(size + 16)
    start = -buffer.data_ptr() % 64 // 4
    return buffer[start : start + size]


def packed_size(num_rows: int, outer: int, inner: int) -> int:
    """How many numbers a matrix (inner, outer) takes, packed for products with `num_rows` rows."""
    size: int = library().cblas_sgemm_pack_get_size(PACK_B, num_rows, outer, inner)
    return size // 4


def pack(weight: Tensor, num_rows: int, target: Tensor) -> None:
    """Pack the transpose of `weight` (outer, inner) for products with `num_rows` rows.

    `target` begins at a multiple of 64 bytes and is not moved afterwards.
    """
    outer, inner = weight.shape
    library().cblas_sgemm_pack(
        *(ROW_MAJOR, PACK_B, TRANSPOSE, num_rows, outer, inner, ctypes.c_float(1.0)),
        ctypes.c_void_p(weight.data_ptr()),
        inner,
        ctypes.c_void_p(target.data_ptr()),
    )


@lru_cache(None)
def library() -> Any:
    """torch's library, through which those that it brings are found too."""
    functions = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    functions.cblas_sgemm_pack_get_size.restype = ctypes.c_size_t
    return functions
