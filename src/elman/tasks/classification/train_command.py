"""`elman train classifier`: from labelled texts to a classifier."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated, Any

import typer

from elman.base.errors import UsageError
from elman.cli.train_command import Training, TrainingOptions, with_training_options
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
from elman.terminal.options import Embeddings, Test, Valid


@with_training_options
def train_classifier(
    data: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="DATA...",
            help="Labelled texts: .tsv, .csv, .jsonl (also .gz, .zst), or a folder with a file of "
            "texts for each label.",
            show_default=False,
        ),
    ] = None,
    column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|N", help="The column with the labels. [default: it is found out]"
        ),
    ] = None,
    text_column: Annotated[
        str | None,
        typer.Option(metavar="NAME|N", help="The column with the texts. [default: likewise]"),
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option(
            min=2,
            metavar="K",
            help="Cross-validate: divide DATA into K parts and train K times, each time testing "
            "on another part.",
        ),
    ] = None,
    embeddings: Embeddings = None,
    valid: Valid = None,
    test: Test = None,
    *,
    options: TrainingOptions,
) -> None:
    """Train, and print where the classifier is and how good it is."""
    options = options.setting("data.column", column).setting("data.text_column", text_column)
    options = options.setting("model.embeddings.path", embeddings)
    training = Training("classifier", data, valid, test, options)
    if folds is None:
        training.run()
    elif options.resume or test:
        raise UsageError(
            "a cross-validation tests on its own parts, and begins at the beginning",
            "leave out --test and --resume, or --folds",
        )
    else:
        _cross_validate(training, folds)


def _cross_validate(training: Training, folds: int) -> None:
    """Train once for each part, and sum up over them."""
    from elman.runs.new_folder import new_run_folder

    options = training.options
    out = options.out or new_run_folder(training.task, training.data or ())
    summaries: list[dict[str, Any]] = []
    for fold in range(1, folds + 1):
        talk(f"fold {fold} of {folds}")
        asked = replace(options, out=Path(out) / f"fold-{fold}")
        asked = asked.setting("data.num_folds", folds).setting("data.fold", fold)
        part = replace(training, options=asked, started=time.monotonic())
        summaries.append(part.trained())
    names = [name for name, value in summaries[0].items() if _is_figure(name, value)]
    found = {name: [summary[name] for summary in summaries] for name in names}
    if options.json:
        overall = {name: mean(values) for name, values in found.items()}
        spread = {f"{name}_deviation": stdev(values) for name, values in found.items()}
        result_json({"out": str(out), **overall, **spread, "folds": summaries})
        return
    rows = [
        (
            f"{spoken(name.removeprefix('test_'))}",
            figure(name.removeprefix("test_"), mean(values)),
            figure(name.removeprefix("test_"), stdev(values)),
            " ".join(figure(name.removeprefix("test_"), value) for value in values),
        )
        for name, values in found.items()
    ]
    result(table(rows, ("test", "mean", "deviation", "folds")))
    seconds = sum(summary["seconds"] for summary in summaries)
    result(f"{number(folds)} run folders in {out}, {duration(seconds)}")


def _is_figure(name: str, value: Any) -> bool:
    return name.startswith("test_") and isinstance(value, float)
