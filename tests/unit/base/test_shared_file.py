"""A file that several threads write."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from elman.base import shared_file
from elman.base.shared_file import SharedFile
from elman.base.threads import in_threads

SIZE = 3 * mmap.PAGESIZE + 17


@pytest.fixture
def mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_file, "LEAST_THREADS", 1)
    monkeypatch.setattr(shared_file, "LEAST_BYTES", 1)
    monkeypatch.setattr(shared_file, "_WINDOW", 2 * mmap.PAGESIZE)


def _write(path: Path) -> bytes:
    data = np.random.default_rng(0).integers(0, 256, SIZE, np.uint8)
    with SharedFile(path, SIZE, 3) as file:
        places = range(0, SIZE, 1000)
        in_threads(lambda at: file.put(at, data[at : at + 1000]), reversed(places), 3)
    return data.tobytes()


def test_parts_are_at_their_places(tmp_path: Path) -> None:
    assert _write(tmp_path / "a") == (tmp_path / "a").read_bytes()


def test_parts_are_at_their_places_on_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no `pwrite` there."""
    monkeypatch.delattr(os, "pwrite", raising=False)
    assert _write(tmp_path / "a") == (tmp_path / "a").read_bytes()


@pytest.mark.usefixtures("mapped")
def test_mapped_pages_have_the_same_bytes(tmp_path: Path) -> None:
    assert _write(tmp_path / "a") == (tmp_path / "a").read_bytes()


@pytest.mark.usefixtures("mapped")
def test_pages_that_cannot_be_allocated_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk, where writing explains what is wrong."""
    monkeypatch.setattr(shared_file, "madvise", lambda: lambda *_: -1)
    assert _write(tmp_path / "a") == (tmp_path / "a").read_bytes()


@pytest.mark.usefixtures("mapped")
def test_what_is_not_written_is_zero(tmp_path: Path) -> None:
    with SharedFile(tmp_path / "a", SIZE, 3) as file:
        file.put(SIZE, b"end")
    assert (tmp_path / "a").read_bytes() == bytes(SIZE) + b"end"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_a_full_disk_is_an_error() -> None:
    with SharedFile(Path("/dev/full"), 1, 1) as file, pytest.raises(OSError, match="space"):
        file.put(0, b"some")
