"""Private functions of torch's libraries that compiled loops call, and the test that guards them.

A time loop multiplies by the same recurrent matrix at every step, and plain `sgemm` reorders that
matrix for the processor each time. MKL, which torch brings, can pack it once (`sgemm_pack`) and
multiply by the packed one (`sgemm_compute`). oneDNN, which torch brings too, multiplies blocks in
float32 and bfloat16 (`brgemm`; see `blocks.py`). GOMP gives access to torch's thread pool
(`team.py`).

These functions are no part of torch's interface: a change of signature would crash the process. So
they are called only with the versions in `TESTED_TORCH`, and after a self-test in a process of its
own (`selftest.py`) has computed with them and compared with torch. Its outcome is kept in the cache
folder, by versions, processor and sources. `problem` says why they are not called, and
`onednn_problem` why those of oneDNN are not.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elman.base.cache import cache_folder
from elman.base.documents import intact, read_json, write_json
from elman.base.errors import ElmanError
from elman.base.processor import processor_name
from elman.nn.kernels.loops import numba, sources_digest
from elman.nn.kernels.memory import room

TESTED_TORCH = ("2.11", "2.13")
"""Versions of torch with which the functions below were tested."""

SELFTEST_SECONDS = 300
"""How long the self-test may take; it is a few seconds, most of them to compile."""

ROW_MAJOR, NO_TRANSPOSE, TRANSPOSE, PACKED, PACK_B = 101, 111, 112, 151, 162
"""MKL's constants."""

_NAMES = (
    *("cblas_sgemm_compute", "cblas_sgemm_pack", "MKL_Set_Num_Threads_Local"),
    *("GOMP_parallel", "GOMP_barrier", "omp_get_thread_num", "omp_get_num_threads"),
)
"""The private functions."""

_BLOCKS = {
    "brgemm_float32": "_ZN2at6native7cpublas6brgemmEllllllbPKfS3_Pfb",
    "brgemm_bfloat16": "_ZN2at6native7cpublas6brgemmEllllllbPKN3c108BFloat16ES5_Pfb",
    "brgemm_release": "_ZN2at6native7cpublas14brgemm_releaseEb",
}
"""Those of oneDNN, which kernels can do without: at::native::cpublas::brgemm and its like."""


def available() -> bool:
    """Whether compiled loops may call the functions here."""
    return not problem()


@lru_cache(None)
def problem() -> str:
    """Why compiled loops may not call the functions here; "" where they may."""
    return find_problem(torch.__version__)


@lru_cache(None)
def onednn_problem() -> str:
    """Why compiled loops may not multiply by oneDNN; "" where they may."""
    if found := problem():
        return found
    if missing := [name for name, symbol in _BLOCKS.items() if not hasattr(library(), symbol)]:
        return f"torch's libraries lack {missing[0]}"
    return _outcome("onednn")


def kernel_notes() -> list[str]:
    """What a user should know about kernels that are off on this machine."""
    found = problem()
    return [f"compiled CPU loops are off: {found}; torch's layers are used"] if found else []


def find_problem(torch_version: str) -> str:
    """The same as `problem` for a version of torch, without caching."""
    if numba is None:
        return "numba is not installed (pip install 'elman[speed]')"
    if not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        return "this build of torch has no MKL"
    if ".".join(torch_version.split(".")[:2]) not in TESTED_TORCH:
        tested = " and ".join(TESTED_TORCH)
        return f"they were tested with torch {tested}, not with {torch_version}"
    try:
        bind()
    except (OSError, AttributeError) as error:
        return f"torch's libraries lack a function ({error})"
    return _outcome("mkl")


def _outcome(part: str) -> str:
    """What a part of the self-test found, now or earlier on this machine; "" where all is well."""
    key = hashlib.sha256("\n".join(facts()).encode()).hexdigest()[:16]
    path = cache_folder() / "kernels" / f"selftest-{part}-{key}.json"
    with suppress(ElmanError), intact(path):
        return str(read_json(path)["problem"])
    try:
        found = _run_selftest(part)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"their self-test could not be run ({error})"  # and is tried again next time
    if found:
        found += f"; delete {path} to test again"
    with suppress(ElmanError):
        write_json(path, {"problem": found})
    return found


def facts() -> list[str]:
    """What the outcomes of tests and timings depend on."""
    versions = [torch.__version__, numba.__version__, processor_name(), sources_digest()]
    names = (TEST_SYMBOLS, *ONEDNN_LIMITS)
    set_by_user = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
    return [*versions, *set_by_user, f"mkldnn={torch.backends.mkldnn.enabled}"]


def _run_selftest(part: str) -> str:
    paths = [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(
        [sys.executable, "-m", "elman.nn.kernels.selftest", part],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=SELFTEST_SECONDS,
        start_new_session=True,  # Ctrl-C is not a failure of the test
    )
    if done.returncode == 0:
        return ""
    if done.returncode < 0:
        return f"their self-test crashed (signal {-done.returncode})"
    said = done.stderr.strip().splitlines() or ["no message"]
    return f"their self-test failed ({said[-1]})"


ONEDNN_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
"""Environment variables that keep oneDNN from some instructions of the processor."""
TEST_SYMBOLS = "ELMAN_TEST_SYMBOLS"
"""For tests alone: an environment variable "name=other" that binds another function to a name."""


@lru_cache(None)
def bind() -> None:
    """Make the functions known to numba; AttributeError where torch's libraries lack one."""
    functions, binding = library(), import_module("llvmlite.binding")
    name, _, other = os.environ.get(TEST_SYMBOLS, "").partition("=")
    for own in _NAMES:
        function = getattr(functions, other if own == name else own)
        address = ctypes.cast(function, ctypes.c_void_p).value
        binding.add_symbol(f"elman_{own}", address)
    for own, symbol in _BLOCKS.items():
        # Compiled code needs an address for every name; `onednn_problem` prevents the call.
        function = getattr(functions, symbol, None) or functions.abort
        binding.add_symbol(f"elman_{own}", ctypes.cast(function, ctypes.c_void_p).value)


def external(name: str, result: str, *arguments: str) -> Any:
    """Declare a function of torch's libraries to compiled code."""
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
"""Set how many threads MKL may use when called from this thread; 0 for its own choice."""

sgemm_pack = external("cblas_sgemm_pack", "void", *_INTS, "float32", "int64", "int32", "int64")
"""layout, which side, transpose, m, n, k, factor, matrix, its row length, where to."""


_LONGS = ("int64",) * 11
brgemm_float32 = external("brgemm_float32", "void", *_LONGS)
brgemm_bfloat16 = external("brgemm_bfloat16", "void", *_LONGS)
"""m, n, k, row lengths of A, B and C, whether to add to C, A, B, C, whether B has rows in pairs:
C = A B, in float32, for one thread. They compile code for each new shape."""

brgemm_release = external("brgemm_release", "void", "int64")
"""Give back what `brgemm` holds of the processor (AMX tiles), at the end of a loop."""


def room_for(
    matrix: Tensor,
    num_rows: int,
    *,
    transposed: bool = False,
    make: Callable[[int], Tensor] = room,
) -> Tensor:
    """Memory for `matrix` (or its transpose) packed as the right side of products with `num_rows`
    rows on the left, with 64 bytes before it."""
    if not matrix.numel():
        return torch.empty(0)
    inner, outer = reversed(matrix.shape) if transposed else matrix.shape
    size: int = library().cblas_sgemm_pack_get_size(PACK_B, num_rows, outer, inner) // 4
    size = max(size, inner * outer)  # in panels
    buffer = make(size + 32)
    start = 16 + -buffer.data_ptr() % 64 // 4  # MKL wants multiples of 64 bytes
    return buffer[start : start + size]


def packed(weight: Tensor, num_rows: int) -> Tensor:
    """The transpose of `weight` (outer, inner), packed for products with `num_rows` rows. The
    zeros before it say that it is not in panels (`cpu_loops.py`)."""
    weight, (outer, inner) = weight.detach().contiguous(), weight.shape
    target = room_for(weight, num_rows, transposed=True, make=torch.zeros)
    library().cblas_sgemm_pack(
        *(ROW_MAJOR, PACK_B, TRANSPOSE, num_rows, outer, inner, ctypes.c_float(1.0)),
        *(ctypes.c_void_p(weight.data_ptr()), inner, ctypes.c_void_p(target.data_ptr())),
    )
    return target


@lru_cache(None)
def library() -> Any:
    """torch's library; the libraries that it brings are found through it."""
    functions = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    functions.cblas_sgemm_pack_get_size.restype = ctypes.c_size_t
    return functions
