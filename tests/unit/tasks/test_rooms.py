"""Rooms are independent: a task imports nothing from another task's folder."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import elman.tasks
from elman.base.errors import UsageError
from elman.recipes.resolve import resolve
from elman.testing import TOY_LABELLED, TOY_TEXT, TOY_TREEBANK

TASKS = Path(elman.tasks.__file__).parent
ROOMS = sorted(path.parent.name for path in TASKS.glob("*/__init__.py"))


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_do_not_import_one_another(room: str) -> None:
    others = tuple(f"elman.tasks.{other}." for other in ROOMS if other != room)
    for path in (TASKS / room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                assert not f"{node.module}.".startswith(others), path


@pytest.mark.parametrize(
    ("task", "data", "setting"),
    [
        ("tagger", TOY_TREEBANK, "tokenizer.kind"),
        ("tagger", TOY_TREEBANK, "objective"),
        ("tagger", TOY_TREEBANK, "data.num_folds"),
        ("tagger", TOY_TREEBANK, "training.vary_chunks"),
        ("classifier", TOY_LABELLED, "objective.regime"),
        ("classifier", TOY_LABELLED, "tokenizer.shared"),
        ("classifier", TOY_LABELLED, "data.max_length"),
        ("elmo", TOY_TEXT, "objective"),
        ("elmo", TOY_TEXT, "training.sample_length"),
    ],
)
def test_settings_that_a_room_does_not_read_are_refused(
    tmp_path: Path, task: str, data: str, setting: str
) -> None:
    file = tmp_path / ("a.conllu" if task == "tagger" else "a.tsv")
    file.write_text(data, encoding="utf-8")
    with pytest.raises(UsageError, match=f"unknown setting '{setting}'"):
        resolve(
            task,
            [str(file)],
            settings={f"{setting}.regime" if setting == "objective" else setting: 1},
        )
