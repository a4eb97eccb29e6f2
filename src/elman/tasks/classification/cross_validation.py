"""`elman train classifier --folds K`: train once for each part of the data, and test on it."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from elman.base.config import merge
from elman.base.errors import UsageError
from elman.terminal.console import (
    duration,
    figure,
    number,
    result,
    result_json,
    spoken,
    table,
    talk,
)


def cross_validate(training: Any, folds: int) -> None:
    """Train `folds` times and print the mean of the test results.

    `training` is what the command line was asked for: a dataclass whose `trained()` trains once.
    """
    from elman.runs.new_folder import new_run_folder

    options = training.options
    if options.resume or training.test:
        raise UsageError(
            "cross-validation tests on parts of DATA and cannot be resumed",
            "drop --test and --resume, or --folds",
        )
    out = Path(options.out or new_run_folder(training.task.name, training.data or ()))
    summaries: list[dict[str, Any]] = []
    for fold in range(1, folds + 1):
        talk(f"fold {fold} of {folds}")
        part = replace(
            training,
            options=replace(options, out=out / f"fold-{fold}"),
            settings=merge(training.settings, {"data": {"num_folds": folds, "fold": fold}}),
            started=time.monotonic(),
        )
        summaries.append(part.trained())
    names = [
        name
        for name, value in summaries[0].items()
        if name.startswith("test_") and isinstance(value, float)
    ]
    found = {name: [summary[name] for summary in summaries] for name in names}
    if options.json:
        means = {name: mean(values) for name, values in found.items()}
        deviations = {f"{name}_deviation": stdev(values) for name, values in found.items()}
        result_json({"out": str(out), **means, **deviations, "folds": summaries})
        return
    rows = []
    for name, values in found.items():
        short = name.removeprefix("test_")
        each = " ".join(figure(short, value) for value in values)
        rows.append(
            (spoken(short), figure(short, mean(values)), figure(short, stdev(values)), each)
        )
    result(table(rows, ("test", "mean", "deviation", "folds")))
    seconds = sum(summary["seconds"] for summary in summaries)
    result(f"{number(folds)} run folders in {out}, {duration(seconds)}")
