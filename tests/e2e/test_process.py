"""`elman` as a process of its own: start-up, signals, pipes and terminals."""

from __future__ import annotations

import os
import pty
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Elman = Callable[..., Any]
Small = tuple[str, ...]
COMMAND = (sys.executable, "-m", "elman.cli")
PATIENCE = 120
"""Seconds after which a process that should have ended is a failure."""


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_help_and_import_leave_torch_alone() -> None:
    script = """
import sys, elman
dir(elman)
from elman.cli.main import run
for command in ([], ["train", "lm"], ["generate"], ["score"], ["info"], ["data", "check"]):
    assert run([*command, "--help"]) == 0
heavy = {"torch", "numpy", "tokenizers", "safetensors", "rich"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run(
        [sys.executable, "-c", script], check=True, timeout=PATIENCE, capture_output=True
    )


def test_import_leaves_the_tasks_alone() -> None:
    script = """
import sys, elman
from elman import base
assert not hasattr(elman, "nothing")
found = [name for name in sys.modules if name.startswith("elman.tasks")]
assert not found, found
from elman import *
assert {*elman.__all__} == {*dir(elman)} <= {*globals()}
assert LM is elman.LM
"""
    done = subprocess.run([sys.executable, "-c", script], timeout=PATIENCE, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr.decode()


def test_an_arpa_file_is_converted_without_torch(tmp_path: Path) -> None:
    arpa = "\\data\\\nngram 1=3\n\n\\1-grams:\n-1\t<unk>\n-1\t</s>\n-0.1\tword\n\n\\end\\\n"
    (tmp_path / "a.arpa").write_text(arpa, encoding="utf-8")
    script = """
import sys
from elman.cli.main import run
assert run(["convert", "a.arpa", "b.arpa"]) == 0
assert run(["convert", "a.arpa", "run"]) == 0
assert "torch" not in sys.modules
"""
    subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        timeout=PATIENCE,
        capture_output=True,
        cwd=tmp_path,
    )


def test_a_closed_pipe_is_quiet(model: Path, toy: Path, tmp_path: Path) -> None:
    text = tmp_path / "long.txt"
    text.write_text(toy.read_text(encoding="utf-8") * 20, encoding="utf-8")
    command = [*COMMAND, "score", str(model), str(text)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"line\t")
        process.stdout.close()
        (said,) = process.stderr.read().splitlines()  # before the table
        assert b"unknown to the model" in said
        assert process.wait(PATIENCE) == 1


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("models >&-", 0),
        ("models 2>&-", 0),
        ("score char-lstm <&-", 0),
        ("next char-lstm - <&-", 0),
    ],
)
def test_a_closed_stream_is_like_an_empty_one(command: str, code: int) -> None:
    """Python has None in place of a stream that the caller closed."""
    script = f"{sys.executable} -m elman.cli {command}"
    done = subprocess.run(script, shell=True, capture_output=True, timeout=PATIENCE, text=True)
    assert "Traceback" not in done.stderr
    assert done.returncode == code, done.stderr


@pytest.mark.parametrize("more", [(), ("--spillover", "1")])
def test_a_byte_order_mark_on_stdin_is_not_text(more: tuple[str, ...]) -> None:
    def scored(text: bytes) -> bytes:
        command = [*COMMAND, "score", "char-lstm", "-", "--unit", "word", *more]
        return subprocess.run(command, input=text, capture_output=True, check=True).stdout

    assert scored(b"\xef\xbb\xbfhello there\r\n") == scored(b"hello there\n")


def test_an_interrupted_run_is_saved_and_can_go_on(
    elman: Elman, small: Small, toy: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    command = [*COMMAND, "train", "lm", str(toy), "--out", str(out), *small]
    with subprocess.Popen(
        [*command, "--steps", "1000000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        _wait_for(lambda: '"kind": "step"' in _text(out / "metrics.jsonl"), process)
        process.send_signal(signal.SIGINT)
        printed, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, said
    assert printed == ""
    assert "Traceback" not in said
    assert "--resume" in said.strip().split("\n")[-1]
    steps = elman("info", out, "--json").json["step"]
    resumed = elman("train", "lm", "--out", out, "--resume", "--steps", steps + 1, "--json")
    assert resumed.code == 0, resumed.err


def test_an_interrupted_generation_is_quiet(model: Path) -> None:
    command = [*COMMAND, "generate", str(model), "--max-tokens", "100000000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(10)  # it streams
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.stderr.read() == b"interrupted\n"
        assert process.wait(PATIENCE) == 130


@pytest.mark.parametrize("seed", range(6))
def test_ctrl_c_while_starting_leaves_nothing(
    seed: int, model: Path, toy: Path, small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    out = tmp_path / "out"
    commands = [
        ("train", "lm", toy, "--out", out, *small, "--steps", "1000000"),
        ("train", "ngram", toy, "--out", out, "--memory", "1G", "--arpa", tmp_path / "out.arpa"),
        ("generate", model, "--max-tokens", "100000000"),
        ("serve", model, "--port", "0"),
    ]
    command = [*COMMAND, *map(str, commands[seed % len(commands)])]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        # Nothing can be done about Ctrl-C before the program's first line.
        _wait_for(lambda: _catches(process.pid, signal.SIGALRM), process)
        time.sleep(random.Random(seed).uniform(0, 0.8))
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE)
    if process.returncode == 0:  # a small text is counted fast
        return
    assert process.returncode == 130, said
    assert "Traceback" not in said
    if " and saved. Continue with: " not in said:
        assert said.endswith("interrupted\n")
        assert not list(tmp_path.iterdir())


def _catches(process: int, number: signal.Signals) -> bool:
    status = Path(f"/proc/{process}/status").read_text()
    caught = re.search(r"SigCgt:\s*([0-9a-f]+)", status)
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


def test_a_terminal_gets_a_live_line_without_colour(
    small: Small, toy: Path, tmp_path: Path
) -> None:
    screen, terminal = pty.openpty()
    command = [*COMMAND, "train", "lm", str(toy), "--out", str(tmp_path / "run"), "--steps", "45"]
    with subprocess.Popen(
        [*command, *small],
        stdout=subprocess.PIPE,
        stderr=terminal,
        env={**os.environ, "NO_COLOR": "1", "TERM": "xterm", "COLUMNS": "200"},
    ) as process:
        os.close(terminal)
        shown = _everything_from(screen)
        assert process.stdout is not None
        printed = process.stdout.read()
        assert process.wait(PATIENCE) == 0
    # Which steps are drawn depends on the machine's speed; the last one always is.
    assert re.search(r"step 45 · loss [\d.]+ · perplexity [\d.]+ · gradient", shown)
    assert "left" in shown
    assert "validation after step 45" in shown
    # Cursor movements are what makes the line live; colours (ESC [ 3x m) are decoration.
    assert not re.search(r"\x1b\[[\d;]*3\d", shown)
    assert b"validation perplexity" in printed


def _everything_from(screen: int) -> str:
    """What is written to a terminal until its other end is closed."""
    shown = b""
    while True:
        try:
            data = os.read(screen, 65536)
        except OSError:  # Linux says so when the other end is closed
            data = b""
        if not data:
            os.close(screen)
            return shown.decode("utf-8", "replace")
        shown += data


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(("given", "found"), [(None, "2000"), ("77", "77")])
def test_threads_that_wait_sleep_soon_unless_told_otherwise(given: str | None, found: str) -> None:
    """Set before torch is loaded: its threads read it then."""
    script = "import os, sys, elman\nprint(os.environ['GOMP_SPINCOUNT'], 'torch' in sys.modules)\n"
    environment = {k: v for k, v in os.environ.items() if k != "GOMP_SPINCOUNT"}
    if given is not None:
        environment["GOMP_SPINCOUNT"] = given
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [found, "False"]
