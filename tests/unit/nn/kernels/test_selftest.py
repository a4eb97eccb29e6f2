"""Private functions of torch's libraries are called only after a self-test in another process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from elman.nn.kernels import kernel_notes, mkl, planning

pytestmark = pytest.mark.skipif(not mkl.available(), reason="compiled loops are off here")

TRAIN = """
import json, torch
from elman.nn.kernels import kernel_notes
from elman.nn.stack import Stack, StackConfig, executed_plans

stack = Stack(StackConfig(cell="gru", hidden_size=8), 8)
stack(torch.randn(16, 8, 8))[0].sum().backward()
print(json.dumps([kernel_notes(), executed_plans(stack, 16, 8)]))
"""


def test_a_wrong_symbol_turns_the_loops_off(tmp_path: Path) -> None:
    """The self-test crashes; this process computes with torch, and says so."""
    changes = {"ELMAN_CACHE": str(tmp_path), mkl.TEST_SYMBOLS: "cblas_sgemm_compute=abort"}
    done = subprocess.run(
        [sys.executable, "-c", TRAIN],
        env={**os.environ, **changes},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    notes, plans = json.loads(done.stdout)
    assert "self-test crashed (signal 6)" in notes[0]
    assert plans == {"layers.0": "torch: its GRU layer"}
    (kept,) = (tmp_path / "kernels").iterdir()
    assert "crashed" in kept.read_text()
    assert str(kept) in notes[0]


def test_a_missing_symbol_turns_the_loops_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(mkl.TEST_SYMBOLS, "GOMP_barrier=no_such_function")
    mkl.bind.cache_clear()
    try:
        assert "lack a function" in mkl.find_problem(f"{mkl.TESTED_TORCH[0]}.0")
    finally:
        monkeypatch.undo()
        mkl.bind.cache_clear()
        mkl.bind()


def test_untested_versions_of_torch_turn_the_loops_off(monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("2.14.0", "2.1.3+cpu", "3.11"):
        assert mkl.find_problem(version) == (
            f"they were tested with torch 2.11 and 2.13, not with {version}"
        )
    monkeypatch.setattr(mkl, "problem", lambda: mkl.find_problem("2.14.0"))
    planning._decide.cache_clear()
    try:
        assert not mkl.available()
        assert kernel_notes() == [
            "compiled CPU loops are off: they were tested with torch 2.11 and 2.13, not with "
            "2.14.0; torch's layers are used"
        ]
    finally:
        planning._decide.cache_clear()


@pytest.mark.parametrize("found", ["", "their self-test failed (7 != 8)"])
def test_the_outcome_is_kept(found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELMAN_CACHE", str(tmp_path))
    runs: list[int] = []
    monkeypatch.setattr(mkl, "_run_selftest", lambda part: (runs.append(1), found)[1])
    first, second = mkl._outcome("mkl"), mkl._outcome("mkl")
    assert first == second
    assert first.startswith(found)
    assert bool(first) is bool(found)
    assert len(runs) == 1


def test_a_self_test_that_cannot_run_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELMAN_CACHE", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere"))
    assert "could not be run" in mkl._outcome("mkl")
    assert not (tmp_path / "kernels").exists()
