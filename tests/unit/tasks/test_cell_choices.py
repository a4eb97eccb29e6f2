"""Every task with recurrent layers has the choices of every cell."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from elman.base.config import from_dict, nested
from elman.nn.cells import Cell
from elman.nn.stack import READS
from elman.recipes.resolve import settings_of
from elman.tasks import TASKS, all_tasks, task_named
from tiny_models import CHANGED

RECURRENT = {
    task.name: next(n.removesuffix("kernel") for n in settings_of(task) if n.endswith(".kernel"))
    for task in all_tasks()
    if task.name in TASKS and any(name.endswith(".kernel") for name in settings_of(task))
}
"""The tasks with recurrent layers, and the part of the settings that describes these."""
CHOICES = [
    ("lstm", "forget_bias"),
    ("gru", "gru_form"),
    ("rnn", "nonlinearity"),
    ("lstm", "peephole"),
    ("gru", "layer_norm"),
    ("sru", "cell"),
    ("qrnn", "cell"),
    ("hgrn", "cell"),
    ("rglru", "cell"),
    ("slstm", "num_heads"),
]


def test_no_task_is_left_out() -> None:
    assert {"lm", "tagger", "classifier", "translator", "captioner", "conditional", "elmo"} == set(
        RECURRENT
    )


@pytest.mark.parametrize("task", RECURRENT)
def test_every_choice_is_a_setting(task: str) -> None:
    names = settings_of(task_named(task))
    for choice in {"cell", *(name for names in READS.values() for name in names)}:
        assert f"{RECURRENT[task]}{choice}" in names


@pytest.mark.parametrize(("cell", "choice"), CHOICES)
@pytest.mark.parametrize("task", RECURRENT)
def test_every_choice_reaches_the_cells(task: str, cell: str, choice: str) -> None:
    where = RECURRENT[task]
    asked: dict[str, Any] = {f"{where}cell": cell, f"{where}hidden_size": 8}
    if task == "conditional":  # a label cannot be attended to
        asked["model.decoder.attention"] = "none"
    if choice != "cell":
        asked[f"{where}{choice}"] = CHANGED[choice]
    config: Any = from_dict(task_named(task).config_class, nested({"task": task, **asked}))
    sizes = [9, 3] if task in ("tagger", "classifier") else [9]
    with torch.device("meta"):
        cells = [m for m in config.model.build(*sizes).modules() if isinstance(m, Cell)]
    of_kind = [found for found in cells if type(found).__name__.lower() == f"{cell}cell"]
    assert of_kind
    attribute = choice.removeprefix("gru_")
    if choice in ("gru_form", "nonlinearity", "layer_norm", "num_heads"):
        assert all(getattr(found, attribute) == CHANGED[choice] for found in of_kind)
    elif choice == "peephole":
        assert all(found.peephole_weight is not None for found in of_kind)
