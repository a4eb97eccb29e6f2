"""Everything about a task lies in its folder: elsewhere only its line in the table names it.

`bench/` and `lab/` are left out: they are apart from the product, and measure tasks by name.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from elman.tasks import TASKS

SRC = Path(__file__).resolve().parents[3] / "src" / "elman"
TABLE = SRC / "tasks" / "__init__.py"

ORDINARY = ("lm", "window", "conditional", "ngram", "classifier", "maxent", "elmo")
"""Names that are words of the field ("an LM", "a window of tokens") or of papers that comments cite
(ELMo, MaxEnt): of these only string literals count, the name itself or `elman train NAME`.
"""
NOUNS = ("window",)
"""Of these only `elman train NAME`."""


def room_of(task: str) -> Path:
    return SRC / TASKS[task].partition(":")[0].removeprefix("elman.").replace(".", "/")


def files_outside(task: str) -> Iterator[Path]:
    for path in sorted(SRC.rglob("*.py")):
        inside = room_of(task) in path.parents
        apart = any(SRC / name in path.parents for name in ("bench", "lab"))
        if not inside and path != TABLE and not apart:
            yield path


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def strings_of(path: Path) -> tuple[str, ...]:
    """String literals, docstrings and comments left out."""
    nodes = [*ast.walk(ast.parse(text_of(path)))]
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    return tuple(
        node.value
        for node in nodes
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in docstrings
    )


@pytest.mark.parametrize("task", TASKS)
def test_no_file_outside_its_folder_names_a_task(task: str) -> None:
    named = []
    for path in files_outside(task):
        text = text_of(path)
        if task in ORDINARY:
            found = any(
                (string == task and task not in NOUNS) or re.search(rf"\btrain {task}\b", string)
                for string in strings_of(path)
            )
        else:
            found = re.search(rf"\b{task}s?\b", text, re.IGNORECASE) is not None
        package = TASKS[task].partition(":")[0]
        if found or f"{package}." in text or f"{package} import" in text:
            named.append(str(path.relative_to(SRC)))
    assert not named, f"{task} is named in {', '.join(named)}"
