"""Counting in stages: commands over files, runs that are killed and continued, a cluster."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elman.ngrams import cluster
from elman.ngrams.storage import MODEL_FILE
from elman.testing import TOY_TEXT

Elman = Callable[..., Any]

KILLED = """
import os, signal, sys
from elman.cli.main import run
from elman.ngrams import scratch
scratch.SMALLEST_MEMORY, scratch.LEAST_ROOM = 1, -(1 << 62)
rename, left = os.rename, [int(sys.argv[1])]
def dying(source, target):
    left[0] -= 1
    if left[0] < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    rename(source, target)
os.rename = dying
sys.exit(run(sys.argv[2:]))
"""


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "toy.txt"
    path.write_text(TOY_TEXT * 3)
    return path


@pytest.fixture(scope="module")
def whole(elman: Elman, text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that is counted in memory, with its ARPA file."""
    out = tmp_path_factory.mktemp("whole") / "run"
    elman("train", "ngram", text, "--valid", text, "--out", out, "--arpa", f"{out}.arpa").ok()
    return out


def assert_same(out: Path, whole: Path) -> None:
    assert {path.name for path in out.iterdir()} == {path.name for path in whole.iterdir()}
    for name in (MODEL_FILE, "tokenizer.json", "config.json"):
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name


def test_each_stage_is_a_command(elman: Elman, text: Path, whole: Path, tmp_path: Path) -> None:
    out, arpa = tmp_path / "run", tmp_path / "run.arpa"
    how = ("train", "ngram", text, "--valid", text, "--out", out, "--arpa", arpa)
    planned = elman(*how, "--plan", 3, "--json").ok()
    assert planned.json["shards"] == 3
    assert "it takes about" in planned.err
    assert "shards" in elman("ngram", "merge", out).error[0]
    for shard in (2, 0, 0):  # repeating does no harm
        elman("ngram", "count", out, "--shard", shard).ok()
    assert "1 of 3 shards are still to be counted" in elman("ngram", "merge", out).error[0]
    assert "3 of 3" in elman("ngram", "count", out).ok().err
    assert "0 to 2" in elman("ngram", "count", out, "--shard", 3).error[1]
    elman("ngram", "merge", out, "--range", 1).ok()
    assert "ranges are still to be merged" in elman("ngram", "estimate", out).error[0]
    elman("ngram", "merge", out).ok()
    assert "estimated" in elman("ngram", "join", out).error[0]
    for _ in range(2):
        elman("ngram", "estimate", out).ok()
    summary = elman("ngram", "join", out, "--json").ok().json
    assert summary["arpa"] == str(arpa)
    assert_same(out, whole)
    assert arpa.read_bytes() == Path(f"{whole}.arpa").read_bytes()
    assert "no stages" in elman("ngram", "count", out).error[0]


def test_a_killed_run_continues(elman: Elman, text: Path, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    how = ("train", "ngram", text, "--valid", text, "--out", out, "--memory", "20K")
    for renames in (2, 9):  # in the middle of counting, then of merging or joining
        more = ("--resume",) if renames > 2 else ()
        command = [sys.executable, "-c", KILLED, str(renames), *map(str, how), *more]
        assert subprocess.run(command, capture_output=True).returncode == -signal.SIGKILL
        runs = len(list(out.glob("stages/count-*"))), len(list(out.glob("stages/merge-*")))
        assert runs[0] == 2 if renames == 2 else runs[0] > 2
    twice = elman("train", "ngram", text, text, "--out", out, "--resume").error[0]
    assert "data.train" in twice
    other = elman("train", "ngram", "--order", 2, "--out", out, "--resume").error[0]
    assert "model.order=5, not 2" in other
    done = elman("train", "ngram", "--out", out, "--resume", "--json").ok()
    assert "continuing" in done.err
    assert_same(out, whole)
    assert done.json["unseen"] == elman("info", whole, "--json").json["unseen"]


def test_there_is_something_to_resume(elman: Elman, text: Path, tmp_path: Path) -> None:
    assert "no run to resume" in elman("train", "ngram", "--out", tmp_path / "a", "--resume").err
    # A run that was killed before its first stage starts again.
    elman("train", "ngram", text, "--out", tmp_path / "a", "--resume").ok()


def test_a_text_that_has_changed(elman: Elman, tmp_path: Path) -> None:
    text, out = tmp_path / "text", tmp_path / "run"
    text.write_text(TOY_TEXT)
    elman("train", "ngram", text, "--out", out, "--plan", 2).ok()
    text.write_text(TOY_TEXT + "more\n")
    assert "has changed" in elman("train", "ngram", "--out", out, "--resume").error[0]
    elman("train", "ngram", text, "--out", out).ok()  # without --resume, it starts again
    assert not (out / "stages").exists()


def test_a_worker_that_dies_costs_its_stage(
    elman: Elman, text: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed")
    mark = str(tmp_path / "died")

    def dying(folder: str, number: int) -> None:
        """Merge, but once die in the middle."""
        import os
        import signal
        from pathlib import Path

        from elman.ngrams import stages

        def merge(*arguments: Any) -> None:
            if not os.path.exists(mark):
                Path(mark).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            original(*arguments)

        original, stages.merge = stages.merge, merge
        try:
            stages.Stages(Path(folder)).merge(number)
        finally:
            stages.merge = original

    monkeypatch.setattr(cluster, "_merge", dying)
    out = tmp_path / "run"
    how = ("train", "ngram", text, "--valid", text, "--out", out)
    made = elman(*how, "--cluster", "local:2").ok()
    assert os.path.exists(mark)
    assert "merged" in made.err
    assert "Dask's page" in made.err
    assert_same(out, whole)


def test_workers_that_share_no_folder(
    elman: Elman, text: Path, whole: Path, tmp_path: Path
) -> None:
    """Their files pass through an fsspec address; memory:// is another one in each process."""
    pytest.importorskip("distributed")
    out, there = tmp_path / "run", tmp_path / "there"
    how = ("train", "ngram", text, "--valid", text, "--out", out, "--cluster", "local:2")
    blind = elman(*how, "--exchange", "memory://there").error
    assert re.search("2 of 2 workers do not find memory:/+there", blind[0])
    made = elman(*how, "--resume", "--exchange", f"file://{there}").ok()
    assert "merged 8 of 8 ranges" in made.err
    assert_same(out, whole)
    assert not list(there.iterdir())


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_memory_is_that_of_the_whole_process(tmp_path: Path) -> None:
    """Measured from outside; the memory that compiling takes, the first time, is left out."""
    text, out, arpa = tmp_path / "text", tmp_path / "run", tmp_path / "run.arpa"
    words = np.random.default_rng(0).zipf(1.3, 1_500_000) % 20_000
    text.write_text("".join(f"w{i}" + (" " if i % 9 else "\n") for i in words.tolist()))
    how = ("train", "ngram", text, "--out", out, "--arpa", arpa, "--set", "tokenizer.kind=word")
    for _ in range(2):
        arpa.unlink(missing_ok=True)
        peak, err = _peak_bytes(*how, "--memory", "256M", "--overwrite")
        assert "goes to disk" in err
        if peak < 256 << 20:
            break
    assert 100 << 20 < peak < 256 << 20


def _peak_bytes(*arguments: object) -> tuple[int, str]:
    """Run a command; return the peak of its resident memory, and what it said."""
    command = [sys.executable, "-m", "elman.cli", *map(str, arguments)]
    found = 0
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            status = Path(f"/proc/{process.pid}/status").read_text()
            peaks = re.findall(r"VmHWM:\s+(\d+) kB", status)
            found = max([found, *(int(peak) << 10 for peak in peaks)])
            time.sleep(0.02)
        assert process.stderr is not None
        err = process.stderr.read()
    assert process.returncode == 0, err
    return found, err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--memory", "255M"), "too few: Python itself takes 200 MB"),
        (("--cluster", "nowhere"), "no Dask scheduler"),
        (("--cluster", "local:2", "--plan", "3"), "contradicts"),
        (("--exchange", "file:///there"), "needs --cluster"),
    ],
)
def test_what_is_refused_before_any_work(
    elman: Elman, text: Path, tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    pytest.importorskip("distributed")
    found = elman("train", "ngram", text, "--out", tmp_path / "run", *arguments)
    assert says in found.error[0]
    assert not (tmp_path / "run").exists()
