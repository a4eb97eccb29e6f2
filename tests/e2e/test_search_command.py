"""`elman search` on the toy corpus: a recipe that trains, the same command again, and kill -9."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optuna")

Elman = Callable[..., Any]
QUICK = ("--set", "model.kernel=reference", "--set", "tokenizer.kind=char", "--steps", 8)


def test_a_recipe_is_found_and_trains(elman: Elman, toy: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ("search", "lm", toy, "--out", out, *QUICK, "--json")
    found = elman(*command, "--trials", 2).ok().json
    assert found["trials"] == 2
    best = min(found["automatic_figures"]["valid_loss"], found["best_figures"]["valid_loss"])
    assert found["best_figures"]["valid_loss"] == best
    assert [path.name for path in (out / "trials").iterdir()] == [str(found["best"])]
    evaluated = elman("info", found["run"], "--json").ok().json
    assert evaluated["validation"]
    again = elman(*command, "--trials", 3).ok()
    assert again.json["trials"] + again.json["pruned"] == 3
    assert again.err.count("trial 2: ") == 1
    run = tmp_path / "run"
    elman("train", "lm", toy, "--recipe", found["recipe"], "--steps", 1, "--out", run).ok()
    settings = json.loads((run / "config.json").read_text())
    assert settings["optimiser"]["learning_rate"] == again.json["best_values"]["learning_rate"]


def test_bad_requests(elman: Elman, toy: Path, tmp_path: Path) -> None:
    message, hint = elman("search", "lm", toy, "--minutes", 0).error
    assert "--minutes cannot be 0" in message
    assert hint == "use a finite number above 0"
    message, _ = elman("search", "lm", toy, "--trial-minutes", "inf").error
    assert "--trial-minutes cannot be inf" in message
    message, _ = elman("search", "lm", toy, "--steps", 9, "--trial-minutes", 1).error
    assert "given twice" in message
    message, hint = elman("search", "lmm", toy, "--out", tmp_path / "out").error
    assert "lmm" in message
    assert "lm" in hint
    message, _ = elman("search", "lm", tmp_path / "no.txt", "--out", tmp_path / "out").error
    assert "no.txt" in message
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_killed_and_shared(elman: Elman, toy: Path, tmp_path: Path) -> None:
    """A process is killed within a trial; two others go on together, and repeat that trial."""
    out = tmp_path / "out"
    words = ("search", "lm", toy, "--out", out, "--set", "tokenizer.kind=char", "--steps", 300)
    command = [sys.executable, "-m", "elman", *map(str, words)]
    first = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while not list(out.glob("trials/1/run/metrics.jsonl")):
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.wait()
    both = [subprocess.Popen([*command, "--trials", "6"]) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    found = elman(*words, "--trials", 6, "--json").ok().json
    assert found["trials"] + found["pruned"] == 6
    assert found["failed"] == 0
