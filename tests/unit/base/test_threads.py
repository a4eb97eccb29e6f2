from __future__ import annotations

from pathlib import Path

import pytest

from elman.base import threads


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
