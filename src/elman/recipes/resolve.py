"""Resolve a user's request to a complete configuration.

Each layer of settings overrides the one before: a recipe or automatic choices, the user's settings,
then length, seed and data. The result is the task's own `RunConfig`. For a setting that the task
does not read, the error names the nearest one, and the tasks that read it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

from elman import recipes
from elman.base.config import (
    UnknownSetting,
    UnreadSetting,
    from_dict,
    merge,
    nested,
    same_setting,
    setting_names,
    to_dict,
    without_unknown,
    without_unread,
)
from elman.base.errors import UsageError, closest
from elman.base.tables import trust
from elman.runs.run_config import RunConfig, TextData
from elman.runs.run_folder import CONFIG_FILE, runs_in
from elman.tasks import Draft, Proposal, Task, all_tasks, task_named
from elman.tasks.opening import read_config
from elman.text.repeated import repeated_texts

LENGTHS = ("epochs", "steps", "minutes")
DEFAULT_EPOCHS = 10
TEXTS = ("train", "valid", "test")


@dataclass(frozen=True)
class Resolved:
    config: Any
    notes: list[str]
    """How the configuration was chosen."""


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
    asked = _asked(task, settings, minutes=minutes, epochs=epochs, steps=steps, seed=seed)
    if not asked.get("training", {}).get("start"):  # a run to go on from has its own settings
        recipe = recipe or task.recipe
    base = {} if recipe is None else _with_absolute_paths(recipes.read(recipe))
    _check_groups(task, base, "write a table [{}] in the recipe")
    given = {"train": data, "valid": valid, "test": test}
    _trust_names(map(str, (*data, *valid, *test)))
    files = {name: list(paths) for name, paths in given.items() if paths}
    for name in files.keys() & asked.get("data", {}).keys():
        raise UsageError(f"the text of data.{name} was given twice", f"drop --set data.{name}")
    asked = merge(asked, {"task": task.name, "recipe": recipe or "automatic", "data": files})
    everything = merge(base, asked)
    _check_kind(task, everything)
    if without_unknown(task.config_class, everything) != everything:
        read_over(task, base, asked)  # raises an error, before the data is read
    if recipe is not None:
        _check_recipe(task, base)
    asked = _with_kind_of_file(base, asked)
    hints = get_type_hints(task.config_class)
    texts: TextData = from_dict(hints["data"], everything["data"], "data")
    notes = []
    if not texts.train:
        if task.corpus is None:
            raise UsageError(
                f"{task.what} needs training data", f"write elman train {task.name} FILE"
            )
        texts = replace(texts, train=(task.corpus,))
        notes.append(f"no data given: using the built-in corpus {task.corpus}")
    notes += repeated_texts(texts.train, texts.valid, texts.test)
    asked["data"].update({name: absolute_paths(getattr(texts, name)) for name in TEXTS})
    notes += [] if recipe is None else [f"recipe {recipe}"]
    proposal = Proposal(base, asked, lambda config: [])
    if task.module is not None:
        from elman.runs.machine import machine

        draft = Draft(task_name, texts, base, asked, recipe, recipes.read)
        proposal = task.functions.choose(draft, machine(device))
    config, unread = read_over(task, proposal.base, proposal.asked)
    if recipe is not None:
        notes += [f"{path} of the recipe is not used" for path in unread]
    _check_vocabulary(config)
    return Resolved(config, [*notes, *proposal.notes(config)])


def _check_vocabulary(config: Any) -> None:
    """Refuse a new run with a vocabulary to which all of its text would be unknown."""
    size = getattr(getattr(config, "tokenizer", None), "vocab_size", 0)
    if 0 < size < 3:
        raise UsageError(
            f"tokenizer.vocab_size cannot be {size}",
            "use 3 or more: two tokens are the boundary and the unknown one",
        )


def resolve_resumed(
    out: Path,
    *,
    settings: Mapping[str, Any] | None = None,
    minutes: float | None = None,
    epochs: int | None = None,
    steps: int | None = None,
) -> Resolved:
    """Resolve the configuration to resume the run in `out`, possibly with another length."""
    if out.is_dir() and not (out / CONFIG_FILE).is_file() and not runs_in(out):
        raise nothing_to_resume(out)
    if not out.exists() and closest(out.name, [run.name for run in runs_in(out.parent)]) is None:
        raise nothing_to_resume(out)
    saved = read_config(out)
    task = task_named(saved.task)
    asked = _asked(task, settings, minutes=minutes, epochs=epochs, steps=steps)
    config = _read(task, _layered(task, to_dict(saved), asked))
    return Resolved(config, [f"continuing the run in {out}"])


def nothing_to_resume(out: Path) -> UsageError:
    return UsageError(f"there is no run to resume in {out}", "start it without --resume")


def task_of_recipe(settings: Mapping[str, Any]) -> Task:
    """The task that a recipe names, or whose default model is of the recipe's kind."""
    if "task" in settings:
        return task_named(str(settings["task"]))
    kind = _kind(settings)
    for task in all_tasks():
        if _default_kind(task) == kind:
            return task
    raise UsageError(
        "the recipe does not say which task it is for", 'write task = "NAME" in the recipe'
    )


def _kind(settings: Mapping[str, Any]) -> str | None:
    model = settings.get("model", {})
    return model.get("kind") if isinstance(model, Mapping) else None


def _default_kind(task: Task) -> str | None:
    """The task's default kind of model."""
    return getattr(_model_field(task).default_factory, "kind", None)


def model_kinds(task: Task) -> list[str]:
    """The kinds of model that a task can have."""
    return list(_model_field(task).metadata.get("table", {})) or [str(_default_kind(task))]


def _model_field(task: Task) -> Field[Any]:
    return next(f for f in fields(task.config_class) if f.name == "model")


def _check_kind(task: Task, settings: Mapping[str, Any]) -> None:
    """Refuse a kind of model that another task has."""
    kind = _kind(settings)
    if kind is None or kind in model_kinds(task):
        return
    for other in all_tasks():
        if _default_kind(other) == kind:
            raise UsageError(
                f"`elman train {task.name}` does not train models of kind {kind}",
                f"write elman train {other.name}",
            )


def settings_of(task: Task, settings: Mapping[str, Any] | None = None) -> list[str]:
    """The dotted names of all settings of a task, for the kinds in `settings` or by default."""
    return list(setting_names(task.config_class, settings or {}))


def _read(task: Task, settings: Mapping[str, Any]) -> RunConfig:
    """Read the task's configuration; for an unknown setting, the error names the tasks with it."""
    try:
        return from_dict(task.config_class, settings)
    except UnknownSetting as error:
        hint = error.hint
        others = [other for other in all_tasks() if other.name != task.name]
        known = {o.name: {*settings_of(o), *settings_of(o, settings)} for o in others}
        name = error.path.rpartition(".")[2]
        alike = {path for names in known.values() for path in same_setting(name, names)}
        path = error.path
        if path not in alike and len(alike) == 1 and not hint.startswith("did you mean"):
            (path,) = alike
        if having := [other for other, names in known.items() if path in names]:
            which = "it" if path == error.path else f"'{path}'"
            hint = f"{which} is a setting of: {', '.join(having)}; {hint}"
        raise UsageError(f"unknown setting '{error.path}' of {task.what}", hint) from None


def read_over(
    task: Task, base: dict[str, Any], asked: dict[str, Any]
) -> tuple[RunConfig, list[str]]:
    """Read `asked` over `base`, without what only the choices of `base` read: the forget bias of
    its lstm cell, if the user asked for a gru. Also return the names of these settings.
    """
    return without_unread(lambda kept: _read(task, _layered(task, kept, asked)), base)


def _check_recipe(task: Task, recipe: dict[str, Any]) -> None:
    """Refuse a recipe with settings that its other settings leave without a reader."""
    try:
        _read(task, recipe)
    except UnreadSetting:
        raise
    except UsageError:
        pass  # the user's settings may correct it


def _with_kind_of_file(base: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """Add the kind of the tokenizer file, if there is one; refuse another kind beside it."""
    own, tokenizer = asked.get("tokenizer", {}), merge(base, asked).get("tokenizer", {})
    if not tokenizer.get("file") or not isinstance(tokenizer["file"], (str, Path)):
        return asked
    from elman.tokens.tokenizer import Tokenizer

    kind = Tokenizer.load(Path(tokenizer["file"])).kind
    stated = (own if own.get("file") else tokenizer).get("kind", "auto")
    if stated not in ("auto", kind):
        raise UsageError(
            f"tokenizer.kind is {stated}, but that of {tokenizer['file']} is {kind}",
            "leave out tokenizer.kind: the file determines it",
        )
    return {**asked, "tokenizer": {**own, "kind": kind, "file": tokenizer["file"]}}


def _asked(task: Task, settings: Mapping[str, Any] | None, **values: Any) -> dict[str, Any]:
    given = {name: value for name, value in values.items() if value is not None}
    if len([name for name in LENGTHS if name in given]) > 1:
        raise UsageError(
            "the length of the run was given twice", "give one of --minutes, --epochs, --steps"
        )
    asked = _with_absolute_paths(nested(settings or {}))
    _trust_names(texts_in(asked))
    _check_groups(task, asked, "write --set {}.KEY=VALUE")
    asked = merge(asked, {"training": given}) if given else asked
    minutes = asked.get("training", {}).get("minutes")
    if isinstance(minutes, float) and not math.isfinite(minutes):  # automatic choices divide by it
        raise UsageError(f"training.minutes cannot be {minutes}", "use a finite number")
    return asked


def _trust_names(texts: Iterable[str]) -> None:
    """Allow the import of what the user named."""
    for text in texts:
        if re.fullmatch(r"[\w.]+:\w+", text):
            trust(text)


def texts_in(settings: Any) -> Iterator[str]:
    """All texts among nested settings."""
    if isinstance(settings, Mapping):
        for value in settings.values():
            yield from texts_in(value)
    elif isinstance(settings, str):
        yield settings


def _check_groups(task: Task, settings: Mapping[str, Any], hint: str) -> None:
    """Refuse a single value for a group of settings."""
    hints = get_type_hints(task.config_class)
    for f in fields(task.config_class):
        is_group = "table" in f.metadata or is_dataclass(hints[f.name])
        if is_group and not isinstance(settings.get(f.name, {}), Mapping):
            raise UsageError(f"'{f.name}' is a group of settings", hint.format(f.name))


def _layered(task: Task, base: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """Override `base` by `asked`; a length in `asked` replaces any length in `base`."""
    if any(name in asked.get("training", {}) for name in LENGTHS):
        training = {k: v for k, v in base.get("training", {}).items() if k not in LENGTHS}
        base = {**base, "training": training}
    layered = merge(base, asked)
    settled = layered.get("training", {})
    has_length = any(settled.get(name) is not None for name in LENGTHS)
    if not has_length and any(f.name == "training" for f in fields(task.config_class)):
        layered["training"] = {**settled, "epochs": DEFAULT_EPOCHS}
    return layered


def _with_absolute_paths(settings: dict[str, Any]) -> dict[str, Any]:
    """Make the paths of embeddings, word vectors, pictures and an earlier run absolute, as those of
    the data."""
    paths = (
        ("model", "embeddings", "path"),
        ("model", "vectors"),
        ("data", "pictures"),
        ("training", "start"),
    )
    for names in paths:
        value: Any = settings
        for name in names:
            value = value.get(name) if isinstance(value, Mapping) else None
        if value and isinstance(value, (str, Path)):
            settings = merge(settings, nested({".".join(names): absolute_paths([value])[0]}))
    return settings


def absolute_paths(paths: Sequence[str | Path]) -> list[str]:
    """Make existing paths absolute, so that a run can be resumed from any folder."""
    return [
        str(Path(p).expanduser().resolve()) if Path(p).expanduser().exists() else str(p)
        for p in paths
    ]
