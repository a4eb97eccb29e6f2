"""Read the answers to exercises: numbers, tables, JSON, Python functions, models.

A Python file is run in a process of its own with a time limit, never in this one: it cannot change
what checks it, and a loop without an end is stopped. That is no protection from malice; the process
may do whatever its user may.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from elman.api import load
from elman.base.errors import ElmanError
from elman.lab.exercises.exercise import Wrong

SECONDS = 30
"""Time limit of a Python file."""
MOST_BYTES = 1 << 20
"""Limit on the size of an answer, and of what a Python file may return."""
RUNNER = Path(__file__).with_name("run_answer.py")

H = TypeVar("H")


def text(path: Path) -> str:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise Wrong(f"The file is larger than {MOST_BYTES:,} bytes.")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ElmanError(
            f"{path}: {error.strerror or error}", "write the answer to a file, and name it"
        ) from error
    except UnicodeDecodeError as error:
        raise Wrong("The file is not UTF-8 text.") from error


def number(path: Path) -> float:
    """The number in a text file; a fraction such as 3/8 is one too."""
    content = text(path).strip().replace("_", "")
    over, _, under = content.partition("/")
    try:
        value = float(over) / float(under or 1)
    except (ValueError, ZeroDivisionError) as error:
        raise Wrong("The file must hold one number, such as 0.25, and nothing else.") from error
    if not math.isfinite(value):
        raise Wrong("The answer is a finite number.")
    return value


def table(path: Path, num_columns: int) -> list[list[str]]:
    """The rows of a file with tabs between columns; empty lines are skipped."""
    rows = [line.split("\t") for line in text(path).splitlines() if line.strip()]
    for line, row in enumerate(rows, start=1):
        if len(row) != num_columns:
            raise Wrong(f"Row {line} has {len(row)} columns, not {num_columns} between tabs.")
    return rows


def document(path: Path) -> Any:
    try:
        return json.loads(text(path))
    except ValueError as error:
        raise Wrong(f"The file is not JSON: {error}.") from error


def calls(path: Path, function: str, arguments: Sequence[Sequence[Any]]) -> list[Any]:
    """What a Python file's function returns for each list of arguments."""
    text(path)
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        process = subprocess.Popen(
            [sys.executable, str(RUNNER), str(path.resolve()), function, str(results)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            start_new_session=True,
        )
        try:
            process.communicate(json.dumps(arguments).encode(), timeout=SECONDS)
        except subprocess.TimeoutExpired as error:
            raise Wrong(f"The file did not finish within {SECONDS} seconds.") from error
        finally:
            _stop(process)
        if not results.is_file() or results.stat().st_size > MOST_BYTES:
            raise Wrong("The file ended before its function had answered.")
        found = json.loads(results.read_text(encoding="utf-8"))
    if "error" in found:
        raise Wrong(f"The file does not run: {found['error']}.")
    return list(found["results"])


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and those that it started."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()


def model(path: Path, kind: type[H]) -> H:
    """The model in a run folder."""
    if not path.exists():
        raise ElmanError(f"there is no model {path}", "name the folder that `elman train` wrote")
    try:
        return load(path, kind=kind)
    except ElmanError as error:
        raise Wrong(f"The model cannot be used here: {error.message}.") from error


def vector(value: Any, length: int, name: str = "The answer") -> list[float]:
    """A list of numbers of this length."""
    numbers = (int, float)
    if not isinstance(value, list) or not all(isinstance(entry, numbers) for entry in value):
        raise Wrong(f"{name} must be a list of numbers.")
    if len(value) != length:
        raise Wrong(f"{name} must have {length} numbers, not {len(value)}.")
    return [float(entry) for entry in value]


def pair(value: Any, first: str, second: str) -> tuple[Any, Any]:
    """The two values that a function returns."""
    if not isinstance(value, list) or len(value) != 2:
        raise Wrong(f"The function must return two values: {first} and {second}.")
    return value[0], value[1]


def near(found: float, expected: float, tolerance: float = 0.01) -> bool:
    """Whether a number is right to 1 %."""
    return math.isclose(found, expected, rel_tol=tolerance, abs_tol=1e-9)


def alike(found: Sequence[float], expected: Sequence[float]) -> bool:
    """Whether all numbers are right to four digits."""
    return all(
        math.isclose(one, other, rel_tol=1e-4, abs_tol=1e-6)
        for one, other in zip(found, expected, strict=True)
    )
