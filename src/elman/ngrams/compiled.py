"""Compile loops with numba.

Compiled loops release the GIL, so threads run them in parallel (`base/threads.py`). numba is an
optional extra: without it modules still import, and calling a loop raises an error that names the
extra. numba caches machine code beside the source or, if that is read-only, in the user's cache.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
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
        numba: Any = import_module("numba")
    except ImportError:

        def explain(*args: Any, **kwargs: Any) -> R:
            raise ElmanError("n-gram models need the numba package", "pip install 'elman[ngram]'")

        return explain
    loop: Callable[..., R] = numba.njit(nogil=True, error_model="numpy", **options)(function)
    return loop
