"""From what a user asked for to a configuration that says everything.

Settings come in layers, each overriding the one before: a recipe (or the automatic choices without
one), the user's settings, then the length, the seed and the data where they are given. The result
is a value of the task's own `RunConfig`; a setting that the task does not read is an error that
names the nearest one, and the tasks that do read it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

from elman import recipes
from elman.base.config import (
    UnknownSetting,
    from_dict,
    merge,
    nested,
    setting_names,
    to_dict,
    without_unknown,
)
from elman.base.errors import UsageError
from elman.base.tables import trust
from elman.runs.run_config import RunConfig, TextData
from elman.tasks import Draft, Proposal, Task, all_tasks, task_key, task_named
from elman.tasks.opening import read_config
from elman.text.sources import expand

LENGTHS = ("epochs", "steps", "minutes")
DEFAULT_EPOCHS = 10
TEXTS = ("train", "valid", "test")


@dataclass(frozen=True)
class Resolved:
    """A configuration, and notes on how it came about."""

    config: Any
    notes: list[str]


def resolve(
    task_name: str,
    data: Sequence[str] = (),
    *,
    valid: Sequence[str] = (),
    test: Sequence[str] = (),
    recipe: str | None = None,
    settings: Mapping[str, Any] | None = None,
    minutes: float | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    seed: int | None = None,
    device: str = "auto",
) -> Resolved:
    """Resolve the configuration of a new run; `settings` may be nested or have dotted names."""
    task = task_named(task_name)
    recipe = recipe or task.recipe
    base = {} if recipe is None else _with_absolute_paths(recipes.read(recipe))
    _check_groups(task, base, "write a table [{}] in the recipe")
    asked = _asked(task, settings, minutes=minutes, epochs=epochs, steps=steps, seed=seed)
    given = {"train": data, "valid": valid, "test": test}
    asked = merge(
        asked,
        {
            "task": task_key(task, task_name),
            "recipe": recipe or "automatic",
            "data": {name: list(paths) for name, paths in given.items() if paths},
        },
    )
    _check_kind(task, merge(base, asked))
    _check_names(task, merge(base, asked))
    hints = get_type_hints(task.config_class)
    texts: TextData = from_dict(hints["data"], merge(base, asked)["data"], "data")
    notes = []
    if not texts.train:
        if task.corpus is None:
            raise UsageError(
                f"{task.what} needs data to learn from", f"write elman train {task.name} FILE"
            )
        texts = replace(texts, train=(task.corpus,))
        notes.append(f"no text was given: using the built-in corpus {task.corpus}")
    for name in TEXTS:
        if getattr(texts, name):
            expand(getattr(texts, name))
    asked["data"].update({name: absolute_paths(getattr(texts, name)) for name in TEXTS})
    notes += [] if recipe is None else [f"recipe {recipe}"]
    proposal = Proposal(base, asked, lambda config: [])
    if task.module is not None:
        from elman.runs.machine import machine

        draft = Draft(task_name, texts, base, asked, recipe, recipes.read)
        proposal = task.functions.choose(draft, machine(device))
    config = _read(task, _layered(proposal.base, proposal.asked))
    return Resolved(config, [*notes, *proposal.notes(config)])


def resolve_resumed(
    out: Path,
    *,
    settings: Mapping[str, Any] | None = None,
    minutes: float | None = None,
    epochs: int | None = None,
    steps: int | None = None,
) -> Resolved:
    """Resolve the configuration of the run in `out`, to continue it, perhaps for another length."""
    saved = read_config(out)
    task = task_named(saved.task)
    asked = _asked(task, settings, minutes=minutes, epochs=epochs, steps=steps)
    config = _read(task, _layered(to_dict(saved), asked))
    return Resolved(config, [f"continuing the run in {out}"])


def task_of_recipe(settings: Mapping[str, Any]) -> Task:
    """The task that a recipe is for: the one it names, or the one that its kind of model has."""
    if "task" in settings:
        return task_named(str(settings["task"]))
    model = settings.get("model", {})
    kind = model.get("kind") if isinstance(model, Mapping) else None
    for task in all_tasks():
        if _default_kind(task) == kind:
            return task
    raise UsageError(
        "the recipe does not say which task it is for", 'write task = "NAME" in the recipe'
    )


def model_kinds(task: Task) -> list[str]:
    """The kinds of model that a task can have."""
    found = next(f for f in fields(task.config_class) if f.name == "model")
    return list(found.metadata.get("table", {})) or [str(_default_kind(task))]


def _default_kind(task: Task) -> str | None:
    """The kind of model that the task has unless another is set."""
    found = next(f for f in fields(task.config_class) if f.name == "model")
    return getattr(found.default_factory, "kind", None)


def _check_kind(task: Task, settings: Mapping[str, Any]) -> None:
    """Refuse a kind of model that another task has."""
    model = settings.get("model", {})
    kind = model.get("kind") if isinstance(model, Mapping) else None
    if kind is None or kind in model_kinds(task):
        return
    for other in all_tasks():
        if _default_kind(other) == kind:
            raise UsageError(
                f"a model of the kind {kind} is not what `elman train {task.name}` makes",
                f"write elman train {other.name}",
            )


def settings_of(task: Task, settings: Mapping[str, Any] | None = None) -> list[str]:
    """The dotted names of all settings of a task; of a part chosen by kind, those of the kind in
    `settings`.
    """
    return list(setting_names(task.config_class, settings or {}))


def _check_names(task: Task, settings: Mapping[str, Any]) -> None:
    """Refuse settings that the task does not read, before its data is looked at."""
    known = without_unknown(task.config_class, settings)
    if known != settings:
        _read(task, settings)


def _read(task: Task, settings: Mapping[str, Any]) -> RunConfig:
    """Read `settings` as the task's configuration; the error says which tasks have a setting."""
    try:
        return from_dict(task.config_class, settings)
    except UnknownSetting as error:
        others = [
            other.name
            for other in all_tasks()
            if other.name != task.name
            and error.path in {*settings_of(other), *settings_of(other, settings)}
        ]
        hint = error.hint
        if others:
            hint = f"it is a setting of: {', '.join(others)}; {hint}"
        raise UsageError(f"unknown setting '{error.path}' of {task.what}", hint) from None


def _asked(task: Task, settings: Mapping[str, Any] | None, **values: Any) -> dict[str, Any]:
    given = {name: value for name, value in values.items() if value is not None}
    if len([name for name in LENGTHS if name in given]) > 1:
        raise UsageError(
            "the length of the run was given twice", "give one of --minutes, --epochs, --steps"
        )
    asked = _with_absolute_paths(nested(settings or {}))
    for value in _texts(asked):
        if re.fullmatch(r"[\w.]+:\w+", value):
            trust(value)
    _check_groups(task, asked, "write --set {}.KEY=VALUE")
    return merge(asked, {"training": given}) if given else asked


def _texts(settings: Any) -> Iterator[str]:
    """All strings in nested settings."""
    if isinstance(settings, Mapping):
        for value in settings.values():
            yield from _texts(value)
    elif isinstance(settings, str):
        yield settings


def _check_groups(task: Task, settings: Mapping[str, Any], hint: str) -> None:
    """Refuse a single value in the place of a group of settings."""
    hints = get_type_hints(task.config_class)
    for f in fields(task.config_class):
        is_group = "table" in f.metadata or is_dataclass(hints[f.name])
        if is_group and not isinstance(settings.get(f.name, {}), Mapping):
            raise UsageError(f"'{f.name}' is a group of settings", hint.format(f.name))


def _layered(base: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """`asked` over `base`; a length that is asked for replaces any in the base."""
    if any(name in asked.get("training", {}) for name in LENGTHS):
        training = {k: v for k, v in base.get("training", {}).items() if k not in LENGTHS}
        base = {**base, "training": training}
    layered = merge(base, asked)
    settled = layered.get("training")
    if settled is not None and all(settled.get(name) is None for name in LENGTHS):
        layered["training"] = {**settled, "epochs": DEFAULT_EPOCHS}
    return layered


def _with_absolute_paths(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings in which the path of embeddings is absolute, as those of data are."""
    embeddings = settings.get("model", {})
    embeddings = embeddings.get("embeddings", {}) if isinstance(embeddings, Mapping) else {}
    if not isinstance(embeddings, Mapping) or not isinstance(embeddings.get("path"), (str, Path)):
        return settings
    (whole,) = absolute_paths([embeddings["path"]]) if embeddings["path"] else ("",)
    return merge(settings, {"model": {"embeddings": {"path": whole}}})


def absolute_paths(paths: Sequence[str | Path]) -> list[str]:
    """Make paths that exist absolute, so that a run can be resumed from any folder."""
    return [
        str(Path(p).expanduser().resolve()) if Path(p).expanduser().exists() else str(p)
        for p in paths
    ]
