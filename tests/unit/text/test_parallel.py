"""Blocks go through several processes and come back in order."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from elman.base.errors import ElmanError
from elman.text.parallel import default_workers, map_blocks
from elman.text.sources import byte_blocks

FUNCTIONS = """
import os, random, sys, time

def upper(setup):
    def apply(data):
        print("noise that must not reach the answers")
        time.sleep(random.random() / 200)
        return setup + data.upper()
    return apply

def dies(setup):
    def apply(data):
        if data.startswith(b"line 30\\n"):
            os._exit(7)
        return data
    return apply

def slow(setup):
    def apply(data):
        sys.stderr.write("began\\n")
        time.sleep(0.5)
        return data
    return apply
"""

PARENT = """
import sys
from pathlib import Path
from elman.text.parallel import map_blocks
from elman.text.sources import byte_blocks
for _ in map_blocks("block_functions:slow", b"", byte_blocks(Path(sys.argv[1]), 8), 2):
    pass
"""


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "block_functions.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "block_functions"


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"line {i}\n" for i in range(60)))
    return path


def test_the_answers_are_in_order_whatever_the_number_of_workers(
    functions: str, lines: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    outcomes = [
        [
            (block.data, answer)
            for block, answer in map_blocks(
                f"{functions}:upper", b">", byte_blocks(lines, 8), workers
            )
        ]
        for workers in (1, 3)
    ]
    assert outcomes[0] == outcomes[1]
    assert b"".join(data for data, _ in outcomes[1]) == lines.read_bytes()
    assert all(answer == b">" + data.upper() for data, answer in outcomes[1])


def test_a_worker_that_ends_is_an_error(functions: str, lines: Path) -> None:
    with pytest.raises(ElmanError, match="exit code 7") as caught:
        list(map_blocks(f"{functions}:dies", b"", byte_blocks(lines, 8), 2))
    assert "memory" in caught.value.hint


def test_a_worker_that_dies_before_it_has_read_its_set_up_is_an_error(
    functions: str, lines: Path
) -> None:
    setup = b"x" * (4 << 20)  # more than a pipe holds
    with pytest.raises(ElmanError, match="worker process died"):
        list(map_blocks(f"missing_{functions}:upper", setup, byte_blocks(lines, 8), 2))


def test_text_that_is_not_utf8_is_an_error_before_it_is_sent(
    functions: str, tmp_path: Path
) -> None:
    path = tmp_path / "bad.txt"
    path.write_bytes(b"good\nb\xffd\n")
    for workers in (1, 2):
        with pytest.raises(ElmanError, match="line 2"):
            list(map_blocks(f"{functions}:upper", b"", byte_blocks(path, 5), workers))


def test_a_consumer_may_stop_early(functions: str, lines: Path) -> None:
    results = map_blocks(f"{functions}:upper", b"", byte_blocks(lines, 8), 2)
    assert next(results)[1] == b"LINE 0\n"
    results.close()  # type: ignore[attr-defined]


def test_small_texts_get_no_processes() -> None:
    assert default_workers(1_000_000) == 1
    assert 1 <= default_workers(10**10) <= 8


def test_workers_end_quietly_when_their_parent_is_killed(
    functions: str, lines: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", PARENT, lines]
    path = os.pathsep.join([str(tmp_path), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stderr is not None
        assert parent.stderr.readline() == "began\n"
        parent.kill()
        rest = parent.stderr.read()  # ends when the last worker does
    assert set(rest.splitlines()) <= {"began"}
