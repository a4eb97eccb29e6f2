"""`elman train lm|window|maxent|ngram`: from text to a model.

`Training` is what every trained task does with its options; a task's command adds its own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from json import dumps as json_text
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from elman.cli.train_ngram import train_ngram

if TYPE_CHECKING:
    from elman.recipes.resolve import Resolved

COUNTS = ("valid_tokens", "steps", "best_step", "tokens", "test_tokens", "test_oov", "seconds")
"""Entries of a summary that say how much, not how good."""
QUIET = ("nats_per_token",)
"""Figures that stay in the JSON: they say what another figure says."""

app = typer.Typer(help="Train a model.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    pass


app.command("ngram", help="Make an n-gram model by counting (Kneser-Ney and others).")(train_ngram)


@app.command("maxent", help="Train a maximum-entropy model of hashed n-grams (Mikolov, 2011).")
@app.command("window", help="Train a fixed-window neural language model (Bengio and others, 2003).")
@app.command("lm", help="Train a recurrent language model.")
def train(
    context: typer.Context,
    data: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DATA...]",
            help="Text files (also .gz, .zst), folders, or built-in names; none: python-docs.",
            show_default=False,
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
    """Train, and print where the model is and how good it is."""
    Training(
        task=str(context.info_name),
        data=data or (),
        valid=valid or (),
        test=test or (),
        recipe=recipe,
        out=out,
        length={"minutes": minutes, "epochs": epochs, "steps": steps},
        settings=settings or (),
        device=device,
        seed=seed,
        resume=resume,
    ).run(json)


@app.command("translator")
def train_translator(
    data: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SOURCE TARGET]",
            help="Two text files, line n of one the translation of line n of the other, or the "
            "built-in kjv-asv, which is also taken where there are none.",
            show_default=False,
        ),
    ] = None,
    valid: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="SOURCE TARGET",
            help="Two files to validate on; else the end of the pairs is held out.",
        ),
    ] = None,
    test: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="SOURCE TARGET", help="Two files to judge the finished model on."),
    ] = None,
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
    """Train a translator: an encoder and a decoder with attention."""
    Training(
        task="translator",
        data=data or (),
        valid=valid or (),
        test=test or (),
        recipe=recipe,
        out=out,
        length={"minutes": minutes, "epochs": epochs, "steps": steps},
        settings=settings or (),
        device=device,
        seed=seed,
        resume=resume,
    ).run(json)


@dataclass(frozen=True, kw_only=True)
class Training:
    """The options of a training command."""

    task: str
    data: Sequence[str]
    valid: Sequence[str]
    test: Sequence[str]
    recipe: str | None
    out: Path | None
    length: dict[str, Any]
    settings: Sequence[str]
    device: str
    seed: int | None
    resume: bool
    started: float = field(default_factory=time.monotonic)
    """The clock when the command began: minutes count from there."""

    def run(self, json: bool) -> None:
        """Train as asked, and print the summary."""
        from elman.cli.progress import show
        from elman.recipes.new_folder import new_run_folder
        from elman.recipes.run import train as run

        resolved = self._resolved()
        folder = self.out or new_run_folder(self.task, self.data)
        for note in resolved.notes:
            talk(f"· {note}")
        last = show(
            run(
                resolved.config,
                folder,
                device=self.device,
                resume=self.resume,
                started=self.started,
            )
        )
        if last.summary is None:  # a signal stopped it, and it was saved
            raise typer.Exit(130)
        if json:
            result_json(last.summary)
        else:
            result(table(_rows(last.summary)))

    def _resolved(self) -> Resolved:
        from elman.recipes.resolve import resolve, resolve_resumed

        texts = {"train": self.data, "valid": self.valid, "test": self.test}
        if not self.resume:
            return resolve(
                self.task,
                self.data,
                valid=self.valid,
                test=self.test,
                recipe=self.recipe,
                overrides=self.settings,
                seed=self.seed,
                device=self.device,
                **self.length,
            )
        if self.out is None:
            raise UsageError("--resume needs the run folder", "name it with --out")
        # What is repeated on the command line must be what the run began with: the runner compares.
        overrides = [f"data.{name}={_absolute(paths)}" for name, paths in texts.items() if paths]
        overrides.append(f'task="{self.task}"')
        overrides += [f'recipe="{self.recipe}"'] if self.recipe is not None else []
        overrides += [f"training.seed={self.seed}"] if self.seed is not None else []
        return resolve_resumed(self.out, overrides=[*self.settings, *overrides], **self.length)


def _rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """The summary for people: how good, how much, where."""
    rows = []
    for prefix, name in (("", "validation"), ("test_", "test")):
        for key, value in summary.items():
            if key.startswith("test_") != bool(prefix) or key in COUNTS:
                continue
            quantity = key.removeprefix(prefix)
            if isinstance(value, float) and quantity not in (*QUIET, "tokens_per_second"):
                rows.append((f"{name} {spoken(quantity)}", figure(quantity, value)))
    return [
        *rows,
        ("updates", number(summary["steps"])),
        ("tokens read", number(summary["tokens"])),
        ("tokens per second", number(round(summary["tokens_per_second"]))),
        ("time", duration(summary["seconds"])),
        ("run folder", summary["out"]),
    ]


def _absolute(paths: Sequence[str]) -> str:
    """Paths as the configuration has them, written as a TOML list."""
    found = [Path(path).expanduser() for path in paths]
    names = [
        str(p.resolve()) if p.exists() else str(given)
        for p, given in zip(found, paths, strict=True)
    ]
    return json_text(names, ensure_ascii=False)
