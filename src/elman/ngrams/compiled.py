"""Compile loops with numba, and run them in threads.

Compiled loops release the GIL, so Python threads run them in parallel. numba is an optional extra:
without it modules still import, and calling a loop raises an error that names the extra. numba
caches machine code beside the source or, if that is read-only, in the user's cache.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from typing import Any, TypeVar

from elman.base.errors import ElmanError

R = TypeVar("R")
Item = TypeVar("Item")
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


def in_threads(
    work: Callable[[Item], R], items: Iterable[Item], num_threads: int | None = None
) -> list[R]:
    """Run `work` on every item in threads; return the results in order."""
    items = list(items)
    num_threads = min(num_threads or default_threads(), len(items))
    if num_threads < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(num_threads) as pool:
        return list(pool.map(work, items))


def in_order(
    work: Callable[[Item], R], items: Iterable[Item], num_threads: int | None = None
) -> Iterator[R]:
    """Like `in_threads`, but yield results as they come, with at most 2 per thread pending."""
    num_threads = num_threads or default_threads()
    with ThreadPoolExecutor(num_threads) as pool:
        waiting: deque[Future[R]] = deque()
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > 2 * num_threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def default_threads() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
