"""`elman train lm|window|ngram`: from text to a model."""

from __future__ import annotations

import time
from json import dumps as json_text
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elman.base.errors import UsageError
from elman.cli.console import duration, number, result, result_json, table, talk
from elman.cli.options import Device, Json
from elman.cli.train_ngram import train_ngram

if TYPE_CHECKING:
    from elman.recipes.resolve import Resolved

app = typer.Typer(help="Train a model.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    pass


app.command("ngram", help="Make an n-gram model by counting (Kneser-Ney and others).")(train_ngram)


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
    valid: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Text to validate on; else the end of DATA is held out."),
    ] = None,
    test: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Text to judge the finished model on."),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE", help="A built-in recipe or a TOML file; else automatic choices."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The run folder. [default: a new one under runs/]"),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(metavar="M", help="Length of the run in minutes.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(metavar="N", help="Length of the run in passes over the text.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(metavar="N", help="Length of the run in updates.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change one setting; may be repeated."),
    ] = None,
    device: Device = "auto",
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Where every random number begins.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --out where it was left.")
    ] = False,
    json: Json = False,
) -> None:
    """Train, and print where the model is and how good it is."""
    started = time.monotonic()
    from elman.api import new_run_folder
    from elman.cli.progress import show
    from elman.recipes.resolve import resolve, resolve_resumed
    from elman.recipes.run import train as run

    task = str(context.info_name)
    overrides = list(settings or ())
    resolved: Resolved
    if resume:
        if out is None:
            raise UsageError("--resume needs the run folder", "name it with --out")
        # What is repeated on the command line must be what the run began with: the runner compares.
        texts = {"train": data, "valid": valid, "test": test}
        overrides += [f"data.{name}={_absolute(paths)}" for name, paths in texts.items() if paths]
        overrides.append(f'task="{task}"')
        overrides += [f'recipe="{recipe}"'] if recipe is not None else []
        overrides += [f"training.seed={seed}"] if seed is not None else []
        resolved = resolve_resumed(
            out, overrides=overrides, minutes=minutes, epochs=epochs, steps=steps
        )
    else:
        resolved = resolve(
            task,
            data or (),
            valid=valid or (),
            test=test or (),
            recipe=recipe,
            overrides=overrides,
            minutes=minutes,
            epochs=epochs,
            steps=steps,
            seed=seed,
            device=device,
        )
    folder = out or new_run_folder(task, data or ())
    for note in resolved.notes:
        talk(f"· {note}")
    last = show(run(resolved.config, folder, device=device, resume=resume, started=started))
    if last.summary is None:  # a signal stopped it, and it was saved
        raise typer.Exit(130)
    if json:
        result_json(last.summary)
        return
    summary = last.summary
    rows = [
        ("validation perplexity", number(summary["perplexity"])),
        ("validation bits per byte", f"{summary['bits_per_byte']:.4f}"),
    ]
    if "test_perplexity" in summary:
        rows += [
            ("test perplexity", number(summary["test_perplexity"])),
            ("test bits per byte", f"{summary['test_bits_per_byte']:.4f}"),
        ]
    rows += [
        ("updates", number(summary["steps"])),
        ("tokens read", number(summary["tokens"])),
        ("tokens per second", number(round(summary["tokens_per_second"]))),
        ("time", duration(summary["seconds"])),
        ("run folder", summary["out"]),
    ]
    result(table(rows))


def _absolute(paths: list[str]) -> str:
    """Paths as the configuration has them, written as a TOML list."""
    found = [Path(path).expanduser() for path in paths]
    names = [
        str(p.resolve()) if p.exists() else str(given)
        for p, given in zip(found, paths, strict=True)
    ]
    return json_text(names, ensure_ascii=False)
