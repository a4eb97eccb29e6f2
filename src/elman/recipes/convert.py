"""`elman convert`: write a model in another form. Each task converts its own models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from elman.base.errors import UsageError
from elman.base.tables import imported
from elman.runs.lock import locked
from elman.runs.new_folder import check_free
from elman.runs.run_folder import check_run_folder
from elman.tasks import all_tasks

FILES = (".bin", ".fst", ".gz", ".json", ".lm", ".onnx", ".pt", ".safetensors", ".txt", ".zst")
"""Suffixes of files; a name without these or a task's own is a folder."""


def convert(model: str, out: str) -> dict[str, Any]:
    """Write `model` in the format that the name `out` implies; return a summary."""
    source, target = Path(model), Path(out)
    possible = "; ".join(task.convert_help for task in all_tasks() if task.convert_help)
    suffixes = tuple(suffix for task in all_tasks() for suffix in task.convert_suffixes)
    is_file = out.lower().endswith(suffixes)
    to_folder = not is_file and (out.endswith("/") or target.suffix.lower() not in FILES)
    if not (is_file or to_folder):
        raise UsageError(f"no model converts to '{target.suffix}', as in {out}", possible)
    if to_folder and target.is_dir():
        with locked(target):  # no other process fills it, and nothing is left of one that did
            empty = not any(target.iterdir())
    if not (to_folder and target.is_dir() and empty):
        check_free(target)
    if {"*", "+"} & set(model) and not source.exists():
        raise UsageError("a mixture cannot be converted", possible)
    if not source.exists():
        check_run_folder(source)  # names the run folder that may be meant
    for task in all_tasks():
        found = None if task.convert is None else imported(task.convert)(source, target, to_folder)
        if found is not None:
            return {**found, "out": out}
    what = "a folder" if to_folder else f"'{target.suffix}'"
    raise UsageError(f"{model} cannot be converted to {what}", possible)
