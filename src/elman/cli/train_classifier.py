"""`elman train classifier`: from labelled texts to a classifier."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated, Any

import typer

from elman.base.errors import UsageError
from elman.cli.console import duration, figure, number, result, result_json, spoken, table, talk
from elman.cli.options import (
    Device,
    Epochs,
    Json,
    Minutes,
    Out,
    Recipe,
    Resume,
    Seed,
    Settings,
    Steps,
    Test,
    Valid,
)
from elman.cli.training import Training


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
    valid: Valid = None,
    test: Test = None,
    recipe: Recipe = None,
    out: Out = None,
    minutes: Minutes = None,
    epochs: Epochs = None,
    steps: Steps = None,
    settings: Settings = None,
    device: Device = "auto",
    seed: Seed = None,
    resume: Resume = False,
    json: Json = False,
) -> None:
    """Train, and print where the classifier is and how good it is."""
    named = {"column": column, "text_column": text_column}
    asked = [f'data.{name}="{value}"' for name, value in named.items() if value is not None]
    training = Training(
        task="classifier",
        data=data or (),
        valid=valid or (),
        test=test or (),
        recipe=recipe,
        out=out,
        length={"minutes": minutes, "epochs": epochs, "steps": steps},
        settings=[*(settings or ()), *asked],
        device=device,
        seed=seed,
        resume=resume,
    )
    if folds is None:
        training.run(json)
    elif resume or test:
        raise UsageError(
            "a cross-validation tests on its own parts, and begins at the beginning",
            "leave out --test and --resume, or --folds",
        )
    else:
        _cross_validate(training, folds, json)


def _cross_validate(training: Training, folds: int, json: bool) -> None:
    """Train once for each part, and sum up over them."""
    from elman.recipes.new_folder import new_run_folder

    out = training.out or new_run_folder(training.task, training.data)
    summaries: list[dict[str, Any]] = []
    for fold in range(1, folds + 1):
        talk(f"fold {fold} of {folds}")
        settings = [*training.settings, f"data.num_folds={folds}", f"data.fold={fold}"]
        part = replace(
            training, settings=settings, out=Path(out) / f"fold-{fold}", started=time.monotonic()
        )
        summaries.append(part.trained())
    names = [name for name, value in summaries[0].items() if _is_figure(name, value)]
    found = {name: [summary[name] for summary in summaries] for name in names}
    if json:
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
