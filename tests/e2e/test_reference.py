"""The generated reference pages are those that the code would write now."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import elman
from elman.cli.main import program

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
    declared = re.findall(r"(?: as |^def |^)(\w+)(?:$|: str$|\($)", stub, re.MULTILINE)
    assert set(declared) == set(elman.__all__)
    assert all(hasattr(elman, name) for name in elman.__all__)


def test_keywords_are_checked(tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api")
    snippet = tmp_path / "snippet.py"
    snippet.write_text(
        "import elman\n"
        "elman.train_lm('my.txt', minutes=5, cell='gru', dropout_output=0.2, overwrite=True)\n"
        "elman.train_ngram(['a.txt'], order=3, encoding='latin-1')\n"
        "elman.train_lm('my.txt', minuts=5)\n"
        "elman.train_lm('my.txt', hidden_size='wide')\n",
        encoding="utf-8",
    )
    # Other modules are skipped: checking them takes a minute.
    options = ("--follow-imports=skip", "--cache-dir", str(tmp_path / "cache"), "--config-file=")
    stub = _generate().STUB
    told, _, _ = api.run([*options, str(stub), str(snippet)])
    lines = [line for line in told.splitlines() if "snippet.py" in line and "error" in line]
    assert len(lines) == 2, told
    assert ':4: error: Unexpected keyword argument "minuts"' in lines[0]
    assert ':5: error: Argument "hidden_size"' in lines[1]


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


def _groups(group: Any, path: str = "elman") -> Iterator[tuple[str, Any]]:
    yield path, group
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _groups(command, f"{path} {name}")


@pytest.mark.parametrize(("path", "group"), list(_groups(program())))
def test_summaries_of_commands_fit_on_their_line(path: str, group: Any) -> None:
    """As the parser cuts them for a terminal of 80 columns."""
    width = 78 - 6 - max(map(len, group.commands))
    cut = {
        name: command.get_short_help_str(width)
        for name, command in group.commands.items()
        if command.get_short_help_str(width) != command.get_short_help_str(1000)
    }
    assert not cut, path
