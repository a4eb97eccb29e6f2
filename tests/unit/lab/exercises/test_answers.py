"""A Python file that answers an exercise runs in a process of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elman.lab.exercises import answers
from elman.lab.exercises.exercise import Wrong


def test_results_come_back(tmp_path: Path) -> None:
    file = tmp_path / "answer.py"
    file.write_text(
        "import os, numpy\nprint('loud')\n"
        "def f(a, b):\n    return {'sum': numpy.array(a) + b, 'process': os.getpid()}\n"
    )
    (found,) = answers.calls(file, "f", [([1, 2], 3)])
    assert found["sum"] == [4, 5]
    assert found["process"] != os.getpid()


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("def f(:", "SyntaxError"),
        ("def f():\n    return 1 / 0", "ZeroDivisionError"),
        ("import sys\nsys.exit(3)", "SystemExit"),
        ("import os\ndef f():\n    os._exit(0)", "ended before"),
        ("def f():\n    return [0] * 1_000_000", "ended before"),
        ("def f():\n    return object()", "TypeError"),
        ("g = 1", "there is no function f"),
    ],
)
def test_files_that_fail(tmp_path: Path, code: str, reason: str) -> None:
    file = tmp_path / "answer.py"
    file.write_text(code)
    with pytest.raises(Wrong, match=reason):
        answers.calls(file, "f", [()])


def test_a_loop_without_an_end_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "SECONDS", 1)
    file = tmp_path / "answer.py"
    file.write_text("def f():\n    while True:\n        pass\n")
    with pytest.raises(Wrong, match="did not finish within 1 seconds"):
        answers.calls(file, "f", [()])


def test_numbers(tmp_path: Path) -> None:
    file = tmp_path / "answer.txt"
    for text, value in (("3/8", 0.375), (" 1_000\n", 1000), ("-2e-3", -0.002)):
        file.write_text(text)
        assert answers.number(file) == value
    for text in ("", "1/0", "nan", "inf", "1 2", "0.5 bits"):
        file.write_text(text)
        with pytest.raises(Wrong):
            answers.number(file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(Wrong, match="UTF-8"):
        answers.number(file)
