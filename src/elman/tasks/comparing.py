"""Compare runs: which settings differ between them, and their best figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elman.base.config import flat, to_dict
from elman.base.documents import read_json_lines
from elman.base.errors import UsageError
from elman.base.tensor_files import open_tensors
from elman.runs.run_folder import (
    CONFIG_FILE,
    METRICS_FILE,
    MODEL_FILE,
    check_run_folder,
    runs_in,
)
from elman.tasks.opening import read_config

LEFT_OUT = ("format",)
FIGURES = ("perplexity", "bits_per_byte", "test_perplexity", "test_bits_per_byte")


@dataclass(frozen=True)
class ComparedRun:
    """One run among others."""

    run: str
    """Its folder."""
    task: str
    settings: dict[str, Any]
    """The settings, by dotted name, that differ between runs which have them; runs of other tasks
    lack some."""
    figures: dict[str, float]
    """Its best figures, and those of the test."""
    unknown: dict[str, float]
    """Shares of tokens that are unknown, of the validation and the test, where they are known."""
    steps: int | None
    """Updates; None of a model made by counting."""
    seconds: float | None
    finished: bool


def run_folders(names: Sequence[str | Path]) -> tuple[list[Path], list[Path]]:
    """The run folders among `names`, and those inside folders of runs; and what is neither."""
    found: dict[Path, None] = {}
    others = []
    for path in map(Path, names):
        inside = [] if (path / CONFIG_FILE).is_file() else runs_in(path)
        if not inside:
            if len(names) > 1 and path.exists() and not (path / CONFIG_FILE).is_file():
                others.append(path)  # of runs/*, what is no run
                continue
            check_run_folder(path)
        found |= dict.fromkeys(inside or [path])
    if not found:
        raise UsageError("none of these is a run folder", "`elman train` makes run folders")
    return list(found), others


def compare(names: Sequence[str | Path]) -> tuple[list[ComparedRun], list[Path]]:
    """Compare runs, given by folder or by a folder of runs; the best first, where that is clear.

    Also return which of the names are no runs.
    """
    paths, others = run_folders(names)
    return _in_order(paths), others


def _in_order(paths: Sequence[Path]) -> list[ComparedRun]:
    each = [flat(to_dict(read_config(path))) for path in paths]
    every = {name: None for settings in each for name in settings}
    differ = [
        name
        for name in every
        if name not in LEFT_OUT and len({repr(s[name]) for s in each if name in s}) > 1
    ]
    runs = [_compared(p, s, differ) for p, s in zip(paths, each, strict=True)]
    if any("bits_per_byte" in run.figures for run in runs):
        return sorted(runs, key=lambda run: run.figures.get("bits_per_byte", math.inf))
    for name in {n: None for run in runs for n in run.figures}:
        if name not in FIGURES and all(name in run.figures for run in runs):  # an accuracy
            return sorted(runs, key=lambda run: -run.figures[name])
    return runs


def _compared(path: Path, settings: Mapping[str, Any], differ: Sequence[str]) -> ComparedRun:
    reports = read_json_lines(path / METRICS_FILE, missing_ok=True)
    summary = next((r["summary"] for r in reversed(reports) if r.get("summary")), None)
    if summary is None:
        found = _best(reports)
        last = reports[-1] if reports else {}
        steps, seconds = last.get("step"), last.get("seconds")
    else:
        found = {k: v for k, v in summary.items() if isinstance(v, float) and _is_figure(k)}
        steps, seconds = summary.get("steps"), summary.get("seconds")
    return ComparedRun(
        run=str(path),
        task=str(settings["task"]),
        settings={name: settings[name] for name in differ if name in settings},
        figures=found,
        unknown=_unknown(_validated(path) if summary is None else summary),
        steps=steps,
        seconds=seconds,
        finished=summary is not None,
    )


def _unknown(summary: Mapping[str, Any]) -> dict[str, float]:
    keys = {"validation": ("oov", "valid_tokens"), "test": ("test_oov", "test_tokens")}
    return {
        name: summary[oov] / summary[tokens]
        for name, (oov, tokens) in keys.items()
        if oov in summary and summary.get(tokens)
    }


def _validated(path: Path) -> Mapping[str, Any]:
    """The unknown tokens of the best validation of a run that has not ended, as in a summary."""
    if not (path / MODEL_FILE).is_file():
        return {}
    with open_tensors(path / MODEL_FILE) as file:
        found = file.header.get("validation") or {}
    return {"oov": found["oov"], "valid_tokens": found["num_tokens"]} if "oov" in found else {}


def _is_figure(name: str) -> bool:
    return not name.endswith(("nats_per_token", "tokens_per_second", "seconds", "_share"))


def _best(reports: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The figures of the best validation of a run that has not ended."""
    validations = [report for report in reports if report.get("kind") == "valid"]
    best = [report for report in validations if report.get("best")] or validations
    if not best:
        return {}
    last = best[-1]
    found = dict(last.get("valid_metrics") or {})
    found |= {name: last.get(f"valid_{name}") for name in ("perplexity", "bits_per_byte")}
    return {name: value for name, value in found.items() if value is not None}
