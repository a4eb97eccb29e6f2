"""Compile loops with numba.

Compiled loops release the GIL, so threads run them in parallel (`base/threads.py`). numba is an
optional extra: without it modules still import, and calling a loop raises an error that names the
extra. numba caches machine code beside the source or, if that is read-only, in the user's cache.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

from elman.base.errors import ElmanError

R = TypeVar("R")
Scalar = Any
"""A number inside a compiled loop; numba infers its type."""


def compiled(function: Callable[..., R]) -> Callable[..., R]:
    """Compile `function` on its first call.

    Compiled functions that call each other must be in one file: numba's cache does not notice
    changes in other files.
    """
    try:
        return _njit(function, cache=True)
    except RuntimeError:  # no writable cache folder: compile in every process
        return _njit(function)


def inlined(function: Callable[..., R]) -> Callable[..., R]:
    """Compile a small helper that is inlined into the compiled loops of the same file.

    A real call that passes arrays would count references, which halves the speed of a short loop.
    """
    return _njit(function, inline="always")


def _njit(function: Callable[..., R], **options: Any) -> Callable[..., R]:
    try:
        numba = _numba()
    except ImportError:

        def explain(*args: Any, **kwargs: Any) -> R:
            raise ElmanError("n-gram models need the numba package", "pip install 'elman[ngram]'")

        return explain
    loop: Callable[..., R] = numba.njit(nogil=True, error_model="numpy", **options)(function)
    return loop


def _numba() -> Any:
    """Import numba without scipy.linalg, which takes as long again.

    The first loop that is loaded imports numba.np.arraymath, which asks for scipy's BLAS. Loops
    here use none, and numba's functions that do ask for it again.
    """
    numba = import_module("numba")
    if "numba.np.arraymath" in sys.modules:
        return numba
    with suppress(ImportError, AttributeError):  # another version of numba
        linalg: Any = import_module("numba.np.linalg")
        ask = linalg.ensure_blas
        try:
            linalg.ensure_blas = _expect_scipy
            import_module("numba.np.arraymath")
        finally:
            linalg.ensure_blas = ask
    return numba


def _expect_scipy() -> None:
    if find_spec("scipy") is None:
        raise ImportError
