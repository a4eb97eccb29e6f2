from __future__ import annotations

import os
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event, Lock, current_thread
from threading import enumerate as enumerate_threads
from time import sleep
from typing import Any

import pytest

from elman.base import threads


def test_numpy_starts_no_threads_if_it_is_imported_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "")  # so that it is put back
    monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    monkeypatch.setitem(sys.modules, "numpy", sys)
    threads.spare_numpy_threads()
    assert "OPENBLAS_NUM_THREADS" not in os.environ
    monkeypatch.delitem(sys.modules, "numpy")
    threads.spare_numpy_threads()
    assert os.environ["OPENBLAS_NUM_THREADS"] == "1"
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    threads.spare_numpy_threads()
    assert os.environ["OPENBLAS_NUM_THREADS"] == "3"


def groups(folder: Path, own: str, files: dict[str, str]) -> float | None:
    (folder / "own").write_text(own)
    for name, content in files.items():
        path = folder / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return threads.container_limit(folder / "own", folder / "root")


def test_version_2(tmp_path: Path) -> None:
    assert groups(tmp_path, "0::/\n", {"cpu.max": "150000 100000\n"}) == 1.5


def test_the_tightest_group_above_counts(tmp_path: Path) -> None:
    files = {"a/b/cpu.max": "max 100000", "a/cpu.max": "200000 100000", "cpu.max": "max 100000"}
    assert groups(tmp_path, "0::/a/b\n", files) == 2.0


def test_version_1(tmp_path: Path) -> None:
    files = {
        "cpu,cpuacct/docker/x/cpu.cfs_quota_us": "50000\n",
        "cpu,cpuacct/docker/x/cpu.cfs_period_us": "100000\n",
        "cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
        "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    }
    own = "5:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n"
    assert groups(tmp_path, own, files) == 0.5


def test_paths_of_the_host_in_a_container(tmp_path: Path) -> None:
    """The group is mounted as the root, under a path that only the host has."""
    files = {"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}
    assert groups(tmp_path, "1:cpu,cpuacct:/kubepods/pod/x\n", files) == 3.0


@pytest.mark.parametrize("files", [{}, {"cpu.max": "max 100000"}, {"cpu.max": "nonsense"}])
def test_no_limit(tmp_path: Path, files: dict[str, str]) -> None:
    assert groups(tmp_path, "0::/\n", files) is None


def test_cores_are_those_of_the_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_affinity", lambda: set(range(16)))
    for limit, cores in ((None, 16), (0.3, 1), (2.5, 2), (3.0, 3), (64.0, 16)):
        monkeypatch.setattr(threads, "container_limit", lambda limit=limit: limit)
        assert threads.usable_cores() == cores


def test_what_is_asked_for_is_the_default_until_it_is_forgotten() -> None:
    threads.set_threads(1)
    assert threads.default_threads() == threads.threads_asked() == 1
    threads.forget_threads()
    assert threads.default_threads() == threads.usable_cores()
    assert threads.free_cores() is None


def test_cores_that_other_programs_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [threads._Sample(0.0, 1.0, 100.0), threads._Sample(2.0, 2.5, 107.5)]
    monkeypatch.setattr(threads._Sample, "take", lambda: samples.pop(0))
    monkeypatch.setattr(threads, "_affinity", lambda: set(range(8)))
    threads.set_threads(None)
    try:
        assert threads.free_cores() == 5.0  # in two seconds others took six
    finally:
        threads.forget_threads()


def test_the_kernel_counts() -> None:
    if not Path("/proc/stat").exists():
        pytest.skip("there is no /proc/stat here")
    threads.set_threads(None)
    try:
        free = threads.free_cores()
    finally:
        threads.forget_threads()
    assert free is not None
    assert free <= len(threads._affinity())


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_results_are_in_order(num_threads: int) -> None:
    assert threads.in_threads(lambda i: i * i, range(50), num_threads) == [i * i for i in range(50)]


def test_the_work_of_threads_may_use_threads() -> None:
    def outer(i: int) -> list[int]:
        return threads.in_threads(lambda j: 10 * i + j, range(8), 4)

    found = threads.in_threads(outer, range(8), 4)
    assert found == [[10 * i + j for j in range(8)] for i in range(8)]


def test_helpers_that_are_all_busy_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_MOST_HELPERS", 1)
    monkeypatch.setattr(threads, "_pools", {})
    test_the_work_of_threads_may_use_threads()


def test_the_first_error_is_raised_and_no_more_is_begun() -> None:
    begun = []

    def fail(i: int) -> None:
        begun.append(i)
        if i > 3:
            raise ValueError(i)

    with pytest.raises(ValueError, match="4"):
        threads.in_threads(fail, range(1000), 3)
    assert len(begun) < 1000


def test_threads_that_begin_together_have_the_same_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    together = Barrier(2)

    def make(*arguments: Any, **options: Any) -> ThreadPoolExecutor:
        together.wait(10)
        return ThreadPoolExecutor(*arguments, **options)

    monkeypatch.setattr(threads, "_pools", {})
    monkeypatch.setattr(threads, "ThreadPoolExecutor", make)
    with ThreadPoolExecutor(2) as pool:
        one, other = [pool.submit(threads._helpers) for _ in range(2)]
    assert one.result() is other.result()


def test_helpers_can_be_ended() -> None:
    for _ in range(2):
        assert threads.in_threads(str, range(5), 3) == [*map(str, range(5))]
        assert any(thread.name.startswith("elman") for thread in enumerate_threads())
        threads.end_helpers()
        assert not any(thread.name.startswith("elman") for thread in enumerate_threads())


@pytest.mark.parametrize("where", ["submit", "wait"])
def test_no_helper_goes_on_after_an_interrupt(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """One that comes outside the caller's own work."""
    begun, finished, helping, caller = list[int](), list[int](), Event(), current_thread()

    def work(i: int) -> None:
        begun.append(i)
        if current_thread() is not caller:
            helping.set()
            sleep(0.02)
        finished.append(i)

    def interrupt() -> None:
        helping.wait(10)
        raise KeyboardInterrupt

    class Pool:
        def submit(self, *arguments: Any) -> Future[None]:
            future = pool.submit(*arguments)
            if where == "submit":
                interrupt()
            return future

    class InterruptedLock:
        """Interrupts the caller's first attempt to acquire one of them."""

        interrupted = False

        def __init__(self) -> None:
            self.lock = Lock()

        def __enter__(self) -> None:
            if current_thread() is caller and not InterruptedLock.interrupted:
                InterruptedLock.interrupted = True
                interrupt()
            self.lock.acquire()

        def __exit__(self, *error: object) -> None:
            self.lock.release()

    monkeypatch.setattr(threads, "_helpers", Pool)
    if where == "wait":
        monkeypatch.setattr(threads, "Lock", InterruptedLock)
    with ThreadPoolExecutor(2) as pool:
        with pytest.raises(KeyboardInterrupt):
            threads.in_threads(work, range(100), 3)
        after = len(begun)
        assert sorted(begun) == sorted(finished)
    assert len(begun) == after
    assert where == "wait" or after < 100


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_fork_has_helpers_of_its_own() -> None:
    threads.in_threads(str, range(5), 3)
    child = os.fork()
    if not child:
        os._exit(int(threads.in_threads(str, range(5), 3) != [*map(str, range(5))]))
    assert os.waitpid(child, 0)[1] == 0
