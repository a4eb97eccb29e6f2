"""How many threads to use, and work in threads.

`usable_cores` knows what the process may use, `free_cores` what other programs leave. A command
line calls `set_threads`; programs that use the library decide for themselves. Threads pay for work
that releases the GIL: compiled loops, other processes.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TypeVar

R = TypeVar("R")
Item = TypeVar("Item")

_MOST_HELPERS = 256
"""The most threads that help at a time, for all calls together."""
_pools: dict[int, ThreadPoolExecutor] = {}
"""The threads that help, by process."""

LEAST_SECONDS = 0.15
"""Time over which the work of other programs is measured: the kernel counts hundredths."""


def usable_cores() -> int:
    """Return the number of CPU cores that this process may use: its affinity, and the limit of its
    container."""
    limit = container_limit()
    return max(1, min(len(_affinity()), len(_affinity()) if limit is None else round(limit)))


def _affinity() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def container_limit(
    own: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> float | None:
    """Return the CPU limit of this process's control groups in cores; None if there is none.

    Version 2 has one hierarchy, version 1 has one for `cpu`, and both can be there. A group's limit
    holds for those below it. In a container, paths may be those outside, so the root counts too.
    """
    limits = []
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if not kinds:
            tops = [root, root / "unified"]
        elif "cpu" in kinds.split(","):
            tops = [root / kinds, root / "cpu"]
        else:
            continue
        parts = Path(path.lstrip("/"))
        for top in tops:
            limits += [_quota(top / group) for group in (parts, *parts.parents)]
    return min((limit for limit in limits if limit is not None), default=None)


def _quota(group: Path) -> float | None:
    """The CPU limit of one control group."""
    try:
        if (group / "cpu.max").is_file():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota = (group / "cpu.cfs_quota_us").read_text().strip()
            period = (group / "cpu.cfs_period_us").read_text()
        return None if quota in ("max", "-1") else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


@dataclass(frozen=True)
class _Sample:
    """Seconds so far."""

    clock: float
    own: float
    """CPU time of this process."""
    others_and_own: float
    """CPU time on the cores of this process."""

    @staticmethod
    def take() -> _Sample | None:
        """Read the kernel's counts; None if it has none."""
        try:
            lines = Path("/proc/stat").read_text().splitlines()
            ticks = os.sysconf("SC_CLK_TCK")
            polite = os.getpriority(os.PRIO_PROCESS, 0) > 0
        except (OSError, ValueError, AttributeError):
            return None
        busy = 0
        for line in lines:
            name, *counts = line.split()
            if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in _affinity():
                user, nice, system, _, _, interrupts, soft, steal = map(int, counts[:8])
                # Programs that are nice make room, unless this one is nice too.
                busy += user + system + interrupts + soft + steal + (nice if polite else 0)
        return _Sample(time.monotonic(), time.process_time(), busy / ticks)


_asked: int | None = None
_began: _Sample | None = None


def set_threads(number: int | None) -> int | None:
    """Use `number` threads in this command; None: choose. Parsing `--threads` calls it."""
    global _asked, _began
    _asked, _began = number, None if number else _Sample.take()
    return number


def forget_threads() -> None:
    """Undo `set_threads`, before another command in this process."""
    global _asked, _began
    _asked = _began = None


def free_cores() -> float | None:
    """Return how many of the usable cores other programs have left free since `set_threads`; None
    if that is unknown."""
    if _began is None:
        return None
    time.sleep(max(0.0, _began.clock + LEAST_SECONDS - time.monotonic()))
    now = _Sample.take()
    assert now is not None
    seconds = now.clock - _began.clock
    others = (now.others_and_own - _began.others_and_own - (now.own - _began.own)) / seconds
    return len(_affinity()) - max(0.0, others)


def threads_asked() -> int | None:
    """The number that `--threads` gives."""
    return _asked


def spare_numpy_threads() -> None:
    """Have NumPy, if it is still to be imported, start no threads for products of matrices.

    There is one for each core, which waits busily for 0.03 s and longer before it sleeps.
    """
    if "numpy" not in sys.modules:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def default_threads() -> int:
    """Return the number of threads, or processes, for work that divides well."""
    return _asked or usable_cores()


def in_threads(
    work: Callable[[Item], R], items: Iterable[Item], num_threads: int | None = None
) -> list[R]:
    """Run `work` on every item in threads, of which the caller's is one; return the results in
    order.

    After an error or an interrupt no more items are begun; those that are begun are finished before
    the first item's error is raised.
    """
    items = list(items)
    num_threads = min(num_threads or default_threads(), len(items))
    if num_threads < 2:
        return [work(item) for item in items]
    results: dict[int, R] = {}
    errors: dict[int, BaseException] = {}
    left = iter(range(len(items)))  # the lock of the interpreter gives each number to one thread

    def take() -> None:
        for number in left:
            if errors:
                return
            try:
                results[number] = work(items[number])
            except BaseException as error:
                errors[number] = error

    def help_out(busy: Lock) -> None:
        with busy:
            take()

    busy = [Lock() for _ in range(num_threads - 1)]
    try:
        helpers = _helpers()
        for lock in busy:
            helpers.submit(help_out, lock)
        take()
        _wait(busy)
    except BaseException as error:  # an interrupt
        errors[-1] = error
        _wait(busy)
    if errors:
        raise errors[min(errors)]
    return [results[number] for number in range(len(items))]


def _wait(locks: Iterable[Lock]) -> None:
    """Wait for helpers that have begun. One that has not, as all may be busy with work that asks
    for more, will find nothing to do."""
    for lock in locks:
        with lock:
            pass


def _helpers() -> ThreadPoolExecutor:
    """Return the threads of this process that help. They stay: starting some in every call takes
    longer than many calls do."""
    process = os.getpid()
    if (pool := _pools.get(process)) is not None:
        return pool
    for other in _pools.keys() - {process}:  # this is a fork: it does not have their threads
        _pools.pop(other, None)
    # Of threads that come here together, the first one's pool is everyone's.
    return _pools.setdefault(process, ThreadPoolExecutor(_MOST_HELPERS, thread_name_prefix="elman"))


def end_helpers() -> None:
    """End the threads that helped so far, as before a fork; later calls start new ones."""
    while _pools:
        _, pool = _pools.popitem()
        pool.shutdown()


def in_order(
    work: Callable[[Item], R], items: Iterable[Item], num_threads: int | None = None
) -> Iterator[R]:
    """Like `in_threads`, but yield results as they come, with at most 2 per thread pending."""
    num_threads = num_threads or default_threads()
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
