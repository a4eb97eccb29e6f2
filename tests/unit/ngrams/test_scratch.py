"""A disk that fails while counting ends in an error, and the run can be continued."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from counting_runs import fit_counts
from elman.base.errors import ElmanError
from elman.ngrams import scratch
from elman.ngrams.scratch import Scratch
from elman.ngrams.storage import MODEL_FILE

MESSAGES = {errno.ENOSPC: "the disk is full", errno.EIO: "Input/output error"}


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory for temporary files; texts above 50 kB of memory are counted on disk."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(scratch, "SMALLEST_MEMORY", 0)
    monkeypatch.setattr(scratch, "LEAST_ROOM", -(1 << 62))
    return folder


@pytest.mark.parametrize("number", list(MESSAGES))
@pytest.mark.parametrize("operation", ["empty", "open"])
def test_counting_on_a_failing_disk(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, operation: str, number: int
) -> None:
    text, out = tmp_path / "text", tmp_path / "out"
    words = np.random.default_rng(0).integers(0, 50, 5_000)
    text.write_text("".join(f"w{i}" + (" " if i % 9 else "\n") for i in words))
    work = getattr(Scratch, operation)
    calls = []

    def failing(self: Scratch, *args: object) -> object:
        calls.append(operation)
        if len(calls) == 2:
            raise OSError(number, os.strerror(number))
        return work(self, *args)

    how: dict[str, Any] = {"model": {"order": 3}, "memory": 50_000}
    with monkeypatch.context() as patched, pytest.raises(ElmanError, match=MESSAGES[number]):
        patched.setattr(Scratch, operation, failing)
        fit_counts("ngram", [str(text)], out, **how)
    assert len(calls) == 2
    assert not list(temporary.iterdir())
    # Only stages that are done are left, and the run continues after them.
    assert not out.exists() or [path.name for path in out.iterdir()] == ["stages"]
    assert not list(out.rglob(".elman-*"))
    fit_counts("ngram", [str(text)], out, resume=True, **how)
    assert not (out / "stages").exists()
    fit_counts("ngram", [str(text)], tmp_path / "free", model={"order": 3})
    assert (out / MODEL_FILE).read_bytes() == (tmp_path / "free" / MODEL_FILE).read_bytes()


@pytest.mark.parametrize("has_fallocate", [True, False])
def test_a_mapped_array_is_allocated_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_fallocate: bool
) -> None:
    if not has_fallocate:
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
        monkeypatch.setattr(scratch, "_ZEROS", 1000)
    with Scratch(tmp_path) as room:
        array = room.empty(5_000, np.int64)
        assert not array.any()
        assert len(array) == 5_000
        status = next(room.folder.iterdir()).stat()
        assert status.st_blocks * 512 >= status.st_size == array.nbytes


KILLED = """
import sys, time
from pathlib import Path
from elman.ngrams.scratch import Scratch
from elman.ngrams.storage import MODEL_FILE
with Scratch(Path(sys.argv[1])) as scratch:
    scratch.empty(1000)
    print(flush=True)
    time.sleep(60)
"""


def test_what_a_killed_process_leaves_is_swept_by_the_next(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, tmp_path]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    assert len(list(tmp_path.iterdir())) == 1
    with Scratch(tmp_path) as room:
        assert list(tmp_path.iterdir()) == [room.folder]
    assert not list(tmp_path.iterdir())
