"""Compile loops with numba, cache their machine code, and offer functions of numbers for them.

`compiled` and `inlined` mark functions for numba. `exp`, `sigmoid` and their relatives become
vector code inside the loops of the other files. Without numba all of them stay plain Python, and
nothing here is called.

B rows, V vocabulary. Arrays are C-contiguous float32.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from inspect import unwrap
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from elman.base.cache import cache_folder


def wide_vectors() -> str | None:
    """The processor's features for LLVM, to use vectors of 512 bits where there is AMX; None
    elsewhere, to leave the choice to LLVM.

    On Intel's processors it avoids them, because early ones lowered their clock for them. Gates
    take 1.4 times as long with 256 bits (measured on a Zen 4).
    """
    try:
        features = import_module("llvmlite.binding").get_host_cpu_features()
    except RuntimeError:
        return None
    has_tiles = features.get("amx-tile") and features.get("avx512f")
    return f"{features.flatten()},-prefer-256-bit" if has_tiles else None


numba: Any = None
with suppress(ImportError):
    numba = import_module("numba")
    # This holds for the whole process: for the loops of n-gram models and of other packages too.
    if numba.config.CPU_FEATURES is None:  # NUMBA_CPU_FEATURES is not set
        numba.config.CPU_FEATURES = wide_vectors()

Array = Any
"""An array inside a compiled loop, where numba gives it its type."""
R = TypeVar("R")

_OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    # Sums may be split over vector lanes and products fused; infinities and NaN stay valid.
    "fastmath": {"reassoc", "contract", "nsz", "arcp"},
}
F32 = np.float32


def with_cache(build: Callable[[bool], R]) -> R:
    """Compile with machine code cached in a folder named after the kernels' sources, or without a
    cache if no folder can be written.

    numba notices a change in a function's own file, but not in the files that it calls.
    """
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(_machine_code())
    try:
        return build(True)
    except RuntimeError:
        return build(False)
    finally:
        numba.config.CACHE_DIR = before


def is_compiled() -> bool:
    """Whether machine code is cached; else the first step of everything compiles."""
    return numba is None or any(_machine_code().rglob("*.nbc"))


def _machine_code() -> Path:
    given = numba.config.CACHE_DIR
    parent = Path(given) if given else cache_folder() / "numba"
    return parent / sources_digest()


@lru_cache(None)
def sources_digest() -> str:
    """A hash of the kernels' sources."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in sources)).hexdigest()[:16]


def compiled(function: Callable[..., R]) -> Callable[..., R]:
    """Compile at the first call."""
    function = unwrap(function)  # the test run wraps functions to check shapes
    if numba is None:
        return function
    fast: Callable[..., R] = with_cache(lambda on: numba.njit(cache=on, **_OPTIONS)(function))
    return fast


def inlined(function: Callable[..., R]) -> Callable[..., R]:
    """Copy a small function into its callers."""
    if numba is None:
        return function
    body: Callable[..., R] = numba.njit(inline="always", **_OPTIONS)(unwrap(function))
    return body


# Functions of one number. libm's are called once per number; these are vectorised.


@inlined
def exp(x: Any) -> Any:
    """e to the x within 1e-7 (Cephes' polynomial), for x cut off at -87 and 88."""
    x = min(max(x, F32(-87.0)), F32(88.0))
    power = np.floor(x * F32(1.44269504088896341) + F32(0.5))
    r = x - power * F32(0.693359375) - power * F32(-2.12194440e-4)
    p = F32(1.9875691500e-4)
    p = p * r + F32(1.3981999507e-3)
    p = p * r + F32(8.3334519073e-3)
    p = p * r + F32(4.1665795894e-2)
    p = p * r + F32(1.6666665459e-1)
    p = p * r + F32(5.0000001201e-1)
    p = p * (r * r) + r + F32(1.0)
    bits = (np.int32(power) + np.int32(127)) << np.int32(23)
    return p * np.int32(bits).view(np.float32)


@inlined
def sigmoid(x: Any) -> Any:
    """1 / (1 + e to the -x)."""
    return F32(1.0) / (F32(1.0) + exp(-x))


@inlined
def tanh(x: Any) -> Any:
    """tanh within 1e-7, relative near 0 too."""
    y = x * x
    p = F32(-5.70498872745e-3)
    p = p * y + F32(2.06390887954e-2)
    p = p * y + F32(-5.37397155531e-2)
    p = p * y + F32(1.33314422036e-1)
    p = p * y + F32(-3.33332819422e-1)
    small = p * y * x + x
    size = abs(x)
    large = F32(1.0) - F32(2.0) / (exp(size + size) + F32(1.0))
    large = large if x > F32(0.0) else -large
    return small if size < F32(0.625) else large


@inlined
def halved(x: Any) -> Any:
    """The upper half of the bits of a float32, rounded to the nearest, even if in between: x as
    bfloat16."""
    bits = np.uint32(F32(x).view(np.uint32))
    rounding = np.uint32(np.uint32(0x7FFF) + np.uint32((bits >> np.uint32(16)) & np.uint32(1)))
    return np.uint16(np.uint32(bits + rounding) >> np.uint32(16))


@inlined
def widened(half: Any) -> Any:
    """Undo `halved`, as far as its bits go."""
    return np.uint32(np.uint32(half) << np.uint32(16)).view(np.float32)


@inlined
def positive(x: Any) -> Any:
    """minGRU's and minLSTM's g: x + 0.5 above zero, sigmoid(x) below."""
    return max(x, F32(0.0)) + sigmoid(min(x, F32(0.0)))


@inlined
def rank(x: Any) -> Any:
    """An integer that grows with x; NaN ranks beyond both infinities.

    Compilers vectorise the maximum of integers but not of floats: a sixth of the time.
    """
    bits = F32(x).view(np.int32)
    return bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF))


@inlined
def ranked(rank: Any) -> Any:
    """Undo `rank`."""
    return np.int32(rank ^ ((rank >> np.int32(31)) & np.int32(0x7FFFFFFF))).view(np.float32)


LOWEST = np.int32(-(2**31))
"""Below every rank."""


@compiled
def highest(row: Array) -> Any:
    top = LOWEST
    for k in range(len(row)):
        top = max(top, rank(row[k]))
    return ranked(top)


@compiled
def draw_tokens(scores: Array, draws: Array) -> Array:
    """The first token at which a row's cumulative probability reaches its draw in (0, 1].

    -1 if no token of the row is possible. Draws are above 0, so a token of probability 0 is never
    drawn.
    """
    num_rows, size = scores.shape
    tokens = np.full(num_rows, -1, np.int64)
    weights = np.empty(size, np.float32)
    for b in range(num_rows):
        top = highest(scores[b])
        if not np.isfinite(top):
            continue
        for k in range(size):
            # exp is cut off at -87, but an excluded token must have probability 0.
            below = scores[b, k] - top
            weights[k] = exp(below) if below > F32(-87.0) else F32(0.0)
        total = 0.0
        for k in range(size):
            total += weights[k]
        reached, goal = 0.0, draws[b] * total
        for k in range(size):
            if weights[k] > F32(0.0):
                reached += weights[k]
                tokens[b] = k
                if reached >= goal:
                    break
    return tokens
