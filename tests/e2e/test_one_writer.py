"""Two processes and one run folder, and what a killed process leaves."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

Elman = Callable[..., Any]
Small = tuple[str, ...]
PROGRAM = """
import os, sys, time
from elman.cli.main import main

replace, name = os.replace, sys.argv.pop(1)

def wait_or_replace(source, target):
    if os.path.basename(target) == name:
        print("here", flush=True)
        sys.stdin.readline()
    replace(source, target)

os.replace = wait_or_replace
main()
"""
"""Runs a command that waits before it puts a file into place."""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary directory of the test's own."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return folder


@contextmanager
def waiting(name: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Start a command that waits before it puts the file `name` into place; kill it at the end."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", PROGRAM, name, *map(str, arguments)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "here\n", process.communicate()
            yield process
        finally:
            process.kill()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def leftovers(folder: Path) -> list[Path]:
    return list(folder.rglob(".elman-*"))


def test_a_second_process_may_not_count_into_a_folder(
    elman: Elman, toy: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    command = ("train", "ngram", toy, "--out", out, "--memory", "8G")
    with waiting("metrics.jsonl", *command) as first:
        before = contents(out)
        second = elman(*command)
        assert second.code == 2
        said, hint = second.error
        assert said.startswith(f"{out} is in use by process {first.pid} (")
        assert hint.startswith("wait until it has ended")
        assert contents(out) == before
        # The first is unharmed.
        _, said = first.communicate("", timeout=120)
        assert first.returncode == 0, said
    assert elman("evaluate", out, toy).code == 0
    assert not leftovers(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "metrics.jsonl"])
def test_counting_that_was_killed_can_be_repeated(
    elman: Elman, toy: Path, tmp_path: Path, temporary: Path, name: str
) -> None:
    out = tmp_path / "run"
    command = ("train", "ngram", toy, "--out", out, "--memory", "8G")
    with waiting(name, *command) as process:
        if name == "tokenizer.json":  # while counts are on disk
            assert leftovers(temporary)
        else:  # the second time, in the run folder, after other files and before config.json
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "here\n"
    assert leftovers(out)
    assert elman(*command).code == 0
    assert not leftovers(tmp_path)


def test_a_second_process_may_not_train_in_a_folder(
    elman: Elman, toy: Path, small: Small, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    command = ("train", "lm", toy, "--out", out, *small, "--steps", 20)
    with waiting("state.safetensors", *command) as first:
        before = contents(out)
        for arguments in (command, ("train", "lm", "--out", out, "--resume")):
            second = elman(*arguments)
            assert second.code == 2
            assert f"{out} is in use by process {first.pid} (" in second.error[0]
        assert contents(out) == before
    # Now the first is killed.
    assert [path.parent.name for path in leftovers(out)] == ["train"]
    assert elman("train", "lm", "--out", out, "--resume").code == 0
    assert not leftovers(tmp_path)


def test_a_run_that_goes_on_is_packed_as_of_its_checkpoint(
    elman: Elman, toy: Path, small: Small, tmp_path: Path
) -> None:
    out, packs, again = (tmp_path / name for name in ("run", "packs", "again"))
    command = ("train", "lm", toy, "--out", out, *small, "--steps", 20, "--seed", 1)
    often = ("--set", "training.checkpoint_seconds=1e-6")
    with waiting("state.safetensors", *command, *often) as first:
        assert first.stdin is not None
        assert first.stdout is not None
        assert f"{out} is in use by process {first.pid}" in elman("pack", out, packs).error[0]
        for _ in range(4):  # those of the updates 0 to 3 are put into place
            first.stdin.write("\n")
            first.stdin.flush()
            assert first.stdout.readline() == "here\n"
        done = elman("pack", out, packs, "--exact").ok()
        assert "packed as it was after update 3" in done.err
        _, said = first.communicate("\n" * 40, timeout=120)
        assert first.returncode == 0, said
    elman("unpack", packs, "--out", again).ok()
    elman("train", "lm", "--out", again, "--resume").ok()
    found = [elman("evaluate", run, toy, "--json").ok().json["perplexity"] for run in (out, again)]
    assert found[0] == found[1]
    assert not leftovers(tmp_path)
