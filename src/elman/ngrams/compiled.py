"""Loops compiled by numba, and work shared out over threads.

Compiled loops release the interpreter's lock, so plain threads run them side by side. numba is an
extra: without it every module still imports, and the first call of a loop says what to install.
The machine code is cached beside the source or, where that cannot be written, in the user's cache.
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
"""A number inside a compiled loop, where numba gives it its type."""

_OPTIONS = {"nogil": True, "error_model": "numpy"}


def compiled(function: Callable[..., R]) -> Callable[..., R]:
    """Compile `function` on its first call.

    Compiled functions that call each other share a file: the cache does not notice a change in
    another one.
    """
    try:
        numba: Any = import_module("numba")
    except ImportError:
        return _missing(function)
    try:
        fast: Callable[..., R] = numba.njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # no folder to cache in: compile anew in every process
        fast = numba.njit(**_OPTIONS)(function)
    return fast


def inlined(function: Callable[..., R]) -> Callable[..., R]:
    """Like `compiled`, for a small function that compiled loops of the same file call.

    Its body takes the place of the call. A call that passes arrays would count references to them,
    which halves the speed of a short loop.
    """
    try:
        numba: Any = import_module("numba")
    except ImportError:
        return _missing(function)
    body: Callable[..., R] = numba.njit(inline="always", **_OPTIONS)(function)
    return body


def in_threads(
    work: Callable[[Item], R], items: Iterable[Item], num_threads: int | None = None
) -> list[R]:
    """`work` done on every item, the results in the items' order."""
    items = list(items)
    num_threads = min(num_threads or default_threads(), len(items))
    if num_threads < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(num_threads) as pool:
        return list(pool.map(work, items))


def in_order(
    work: Callable[[Item], R], items: Iterable[Item], num_threads: int | None = None
) -> Iterator[R]:
    """`work` done by threads, in the items' order, with few results waiting to be taken."""
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
    """The number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _missing(function: Callable[..., R]) -> Callable[..., R]:
    def explain(*args: Any, **kwargs: Any) -> R:
        raise ElmanError("n-gram models need the numba package", "pip install 'elman[ngram]'")

    return explain
