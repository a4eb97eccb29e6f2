"""From what a user asked for to a `RunConfig` that says everything.

Settings come in layers, each over the one before: a recipe (or the automatic choices where there is
none), the overrides (`--set key=value`), then the length, the seed and the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elman import recipes
from elman.base.config import from_dict, merge, parse_overrides, to_dict
from elman.base.errors import UsageError, nearest
from elman.recipes import automatic
from elman.recipes.config import RunConfig
from elman.recipes.machine import machine
from elman.recipes.run_folder import read_config
from elman.text.sources import expand
from elman.tokens.choose import choose

DEFAULT_CORPUS = "python-docs"
"""What is learnt from where no text is given: it comes with Python."""
TASKS = {"lm": None, "window": "window-bengio"}
"""What can be trained, and the recipe that each task starts from where none is given."""
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
    notes = []
    if not data:
        data = (DEFAULT_CORPUS,)
        notes.append(f"no text was given: learning from the built-in corpus {DEFAULT_CORPUS}")
    recipe = recipe or TASKS[task]
    asked = _asked(overrides, minutes=minutes, epochs=epochs, steps=steps, seed=seed)
    asked = merge(
        asked,
        {
            "task": task,
            "recipe": recipe or "automatic",
            "data": {"train": _paths(data), "valid": _paths(valid), "test": _paths(test)},
        },
    )
    files = expand(data)
    for paths in (valid, test):
        if paths:
            expand(paths)

    base = {} if recipe is None else recipes.read(recipe)
    wanted = merge(base, asked).get("tokenizer", {})
    kind = "file" if wanted.get("file") else wanted.get("kind", "auto")
    if recipe is not None and kind != "auto":
        return Resolved(from_dict(RunConfig, _layered(base, asked)), [*notes, f"recipe {recipe}"])

    choice = choose(files)
    text = automatic.Text(choice, choice.kind if kind in ("auto", "file") else kind)
    if recipe is not None:
        base = merge(base, {"tokenizer": {"kind": choice.kind, "vocab_size": choice.vocab_size}})
        config = from_dict(RunConfig, _layered(base, asked))
        return Resolved(config, [*notes, f"recipe {recipe}", f"{choice.kind}: {choice.reason}"])
    where = machine(device)
    config = from_dict(
        RunConfig, _layered(automatic.settings(text, where, has_valid=bool(valid)), asked)
    )
    return Resolved(config, [*notes, *automatic.sentences(config, text, where)])


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
    return merge(parse_overrides(overrides), {"training": given})


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


def _paths(paths: Sequence[str]) -> list[str]:
    """Paths that exist are made absolute, so that a run can be resumed from any folder."""
    return [
        str(Path(p).expanduser().resolve()) if Path(p).expanduser().exists() else str(p)
        for p in paths
    ]
