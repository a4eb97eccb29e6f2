"""Run work in threads. It pays for work that releases the GIL: compiled loops, other processes."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

R = TypeVar("R")
Item = TypeVar("Item")


def usable_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_threads(
    work: Callable[[Item], R], items: Iterable[Item], num_threads: int | None = None
) -> list[R]:
    """Run `work` on every item in threads; return the results in order."""
    items = list(items)
    num_threads = min(num_threads or usable_cores(), len(items))
    if num_threads < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(num_threads) as pool:
        return list(pool.map(work, items))


def in_order(
    work: Callable[[Item], R], items: Iterable[Item], num_threads: int | None = None
) -> Iterator[R]:
    """Like `in_threads`, but yield results as they come, with at most 2 per thread pending."""
    num_threads = num_threads or usable_cores()
    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(num_threads) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) > 2 * num_threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:  # after an error, or if the caller takes no more
            pool.shutdown(wait=False, cancel_futures=True)
