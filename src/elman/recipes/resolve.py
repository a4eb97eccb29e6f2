"""From what a user asked for to a `RunConfig` that says everything.

Settings come in layers, each over the one before: a recipe (or the automatic choices where there is
none), the overrides (`--set key=value`), then the length, the seed and the data where they are
given on the command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from elman import recipes
from elman.base.config import from_dict, merge, parse_overrides, to_dict
from elman.base.errors import UsageError, nearest
from elman.runs.machine import machine
from elman.runs.new_folder import DEFAULT_CORPUS
from elman.runs.run_config import DataConfig, RunConfig
from elman.runs.run_folder import read_config
from elman.tasks import (
    TASKS,
    Choice,
    Request,
    check_kind,
    model_kind,
    task_module,
)
from elman.text.sources import expand

RECIPES = {"window": "window-bengio", "maxent": "maxent-hashed"}
"""The recipe that a task starts from where none is given; elsewhere choices are automatic."""
BUILT_IN = {
    **dict.fromkeys(("lm", "window", "maxent", "elmo"), DEFAULT_CORPUS),
    "translator": "kjv-asv",
    "conditional": "surnames",
}
"""The built-in corpus that will do for a task where no data is given."""
GROUPS = ("data", "tokenizer", "model", "objective", "optimiser", "schedule", "training")
LENGTHS = ("epochs", "steps", "minutes")


@dataclass(frozen=True)
class Resolved:
    """A configuration, and what the user should know about how it came about."""

    config: RunConfig
    notes: list[str]


def resolve(
    task: str,
    data: Sequence[str],
    *,
    valid: Sequence[str] = (),
    test: Sequence[str] = (),
    recipe: str | None = None,
    overrides: Sequence[str] = (),
    minutes: float | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    seed: int | None = None,
    device: str = "auto",
) -> Resolved:
    """The configuration of a new run."""
    if task not in TASKS:
        raise UsageError(f"there is nothing called '{task}' to train", nearest(task, TASKS))
    recipe = recipe or RECIPES.get(task)
    base = {} if recipe is None else _with_whole_paths(recipes.read(recipe))
    _check_groups(base, "write a table [{}] in the recipe")
    asked = _asked(overrides, minutes=minutes, epochs=epochs, steps=steps, seed=seed)
    given = {"train": data, "valid": valid, "test": test}
    asked = merge(
        asked,
        {
            "task": task,
            "recipe": recipe or "automatic",
            "data": {name: list(paths) for name, paths in given.items() if paths},
        },
    )
    model = merge(base, asked).get("model", {})
    check_kind(task, model.get("kind", model_kind(task)))
    notes = []
    texts = from_dict(DataConfig, merge(base, asked)["data"], "data")
    if not texts.train and task not in BUILT_IN:
        raise UsageError(f"a {task} needs data to learn from", f"write elman train {task} FILE")
    if not texts.train:
        texts = replace(texts, train=(BUILT_IN[task],))
        notes.append(f"no text was given: learning from the built-in corpus {BUILT_IN[task]}")
    for paths in (texts.train, texts.valid, texts.test):
        if paths:
            expand(paths)
    asked["data"].update({name: _paths(getattr(texts, name)) for name in given})
    notes += [] if recipe is None else [f"recipe {recipe}"]
    choice: Choice = task_module(task).choose(
        Request(task, texts, base, asked, recipe), machine(device)
    )
    config = from_dict(RunConfig, _layered(choice.base, choice.asked))
    return Resolved(config, [*notes, *choice.notes(config)])


def resolve_resumed(
    out: Path,
    *,
    overrides: Sequence[str] = (),
    minutes: float | None = None,
    epochs: int | None = None,
    steps: int | None = None,
) -> Resolved:
    """The configuration of the run in `out`, to continue it; another length may be asked for."""
    asked = _asked(overrides, minutes=minutes, epochs=epochs, steps=steps)
    saved = to_dict(read_config(out))
    return Resolved(from_dict(RunConfig, _layered(saved, asked)), [f"continuing the run in {out}"])


def _asked(overrides: Sequence[str], **values: Any) -> dict[str, Any]:
    given = {name: value for name, value in values.items() if value is not None}
    if len([name for name in LENGTHS if name in given]) > 1:
        raise UsageError(
            "the length of the run was given twice", "give one of --minutes, --epochs, --steps"
        )
    settings = _with_whole_paths(parse_overrides(overrides))
    _check_groups(settings, "write --set {}.KEY=VALUE")
    return merge(settings, {"training": given})


def _check_groups(settings: dict[str, Any], hint: str) -> None:
    for name in GROUPS:
        if not isinstance(settings.get(name, {}), dict):
            raise UsageError(f"'{name}' is a group of settings", hint.format(name))


def _layered(base: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """`asked` over `base`; a length that is asked for takes the place of any in the base."""
    if any(name in asked["training"] for name in LENGTHS):
        training = {k: v for k, v in base.get("training", {}).items() if k not in LENGTHS}
        base = {**base, "training": training}
    layered = merge(base, asked)
    training = layered["training"]
    if all(training.get(name) is None for name in LENGTHS):
        training["epochs"] = 10
    return layered


def _with_whole_paths(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings in which the path of embeddings, if there is one, is absolute as those of data."""
    embeddings = settings.get("model", {})
    embeddings = embeddings.get("embeddings", {}) if isinstance(embeddings, dict) else {}
    if not isinstance(embeddings, dict) or not isinstance(embeddings.get("path"), str):
        return settings
    (whole,) = _paths([embeddings["path"]]) if embeddings["path"] else ("",)
    return merge(settings, {"model": {"embeddings": {"path": whole}}})


def _paths(paths: Sequence[str]) -> list[str]:
    """Paths that exist are made absolute, so that a run can be resumed from any folder."""
    return [
        str(Path(p).expanduser().resolve()) if Path(p).expanduser().exists() else str(p)
        for p in paths
    ]
