"""The generated reference pages are those that the code would write now."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

import elman

DOCS = Path(__file__).parents[2] / "docs"


def _generate() -> Any:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _pages() -> dict[str, str]:
    pages: dict[str, str] = _generate().pages()
    return pages


def test_type_checkers_know_all_that_the_package_offers() -> None:
    generate = _generate()
    stub = generate.STUB.read_text(encoding="utf-8")
    assert stub == generate.stub(), "run make docs"
    declared = re.findall(r" as (\w+)$|^(\w+): ", stub, re.MULTILINE)
    assert {left or right for left, right in declared} == set(elman.__all__)
    assert all(hasattr(elman, name) for name in elman.__all__)


@pytest.mark.parametrize("name", ["cli.md", "python.md", "config.md", "recipes.md", "corpora.md"])
def test_the_reference_is_up_to_date(name: str) -> None:
    committed = (DOCS / "reference" / name).read_text(encoding="utf-8")
    assert committed == _pages()[name], "run make docs"


def test_every_setting_has_prose() -> None:
    rows = [line for line in _pages()["config.md"].split("\n") if line.startswith("| `")]
    assert len(rows) > 50
    bare = [row for row in rows if row.endswith("|  |")]
    assert not bare


def test_every_option_has_help() -> None:
    rows = [line for line in _pages()["cli.md"].split("\n") if line.startswith("| `")]
    assert len(rows) > 50
    bare = [row for row in rows if row.endswith("|  |")]
    assert not bare


def test_the_pages_have_no_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS.parent / "examples"))
    monkeypatch.setenv("ELMAN_PLUGINS", "own_task:TASK")
    generate = _generate()
    assert not [name for name, text in generate.pages().items() if "own_task" in text]
    assert "own_task" not in generate.stub()
