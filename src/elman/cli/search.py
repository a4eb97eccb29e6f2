"""`elman search`: find settings that train better than the automatic choice."""

from __future__ import annotations

import time
from math import inf
from pathlib import Path
from typing import Annotated, Any

import typer

from elman.base.config import parse_overrides
from elman.base.errors import UsageError
from elman.terminal import console
from elman.terminal.console import duration, number
from elman.terminal.options import (
    Device,
    Json,
    Recipe,
    Seed,
    Settings,
    Threads,
    Valid,
    argument,
    option,
)

DEFAULT_MINUTES = 60.0


def search(
    task: Annotated[str, argument("TASK", "What to train: a task of `elman train`.")],
    data: Annotated[list[str] | None, argument("DATA...", "As for `elman train TASK`.")] = None,
    minutes: Annotated[float, option("M", "Length of the search in minutes.")] = DEFAULT_MINUTES,
    trial_minutes: Annotated[
        float | None, option("M", "Length of trial 0. [default: a twelfth of --minutes]")
    ] = None,
    trials: Annotated[int | None, option("N", "Stop after this many trials.", min=1)] = None,
    steps: Annotated[
        int | None,
        option("N", "Length of trial 0 in updates; trials have equal tokens then.", min=1),
    ] = None,
    out: Annotated[
        Path | None, option("DIR", "The folder of the search. [default: searches/TASK-DATA]")
    ] = None,
    valid: Valid = None,
    recipe: Recipe = None,
    settings: Settings = None,
    device: Device = "auto",
    threads: Threads = None,
    seed: Seed = None,
    json: Json = False,
) -> None:
    """Search for settings better than the automatic choice.

    Trial 0 is the automatic choice, or the recipe. Every trial has the minutes of
    trial 0; one that is bad at equal tokens is stopped early. The best settings
    become recipe.toml in --out, for `elman train TASK --recipe`. The same command
    goes on with a search, also after kill -9, and several processes may share one.
    """
    from elman.recipes.search import SHARE, open_search, run

    started = time.monotonic()
    names = list(data or ())
    for name, value in (("--minutes", minutes), ("--trial-minutes", trial_minutes)):
        if value is not None and not 0 < value < inf:
            raise UsageError(f"{name} cannot be {value:g}", "use a finite number above 0")
    if steps is not None and trial_minutes is not None:
        raise UsageError("the length of trial 0 was given twice", "drop --trial-minutes")
    stem = Path(names[0]).name.split(".")[0] if names else "corpus"
    found = open_search(
        out or Path("searches") / f"{task}-{stem}",
        task,
        names,
        valid=list(valid or ()),
        recipe=recipe,
        settings=parse_overrides(settings or ()),
        trial_minutes=trial_minutes or float(f"{minutes / SHARE:.3g}"),
        steps=steps,
        seed=1 if seed is None else seed,
        device=device,
        tell=console.talk,
    )
    summary = run(found, minutes=minutes, trials=trials, started=started, tell=console.talk)
    if json:
        console.result_json(summary)
    else:
        console.result(console.table(_rows(summary)))
    if summary["interrupted"]:
        raise typer.Exit(130)


def _rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [
        ("trials", f"{summary['trials']} finished, {summary['pruned']} pruned"),
        ("time", duration(summary["seconds"])),
    ]
    if "best" not in summary:
        return [*rows, ("result", "none yet: no trial has finished; the same command goes on")]
    for who in ("automatic", "best"):
        if figures := summary.get(f"{who}_figures"):
            name, value = next(iter(figures.items()))
            name = name.replace("valid_", "validation ").replace("_", " ")
            took = duration(summary[f"{who}_seconds"])
            label = "automatic choice" if who == "automatic" else f"best (trial {summary['best']})"
            rows.append((label, f"{name} {value:.4g}, in {took}"))
    if summary["importance"]:
        shares = (f"{name} {share:.0%}" for name, share in summary["importance"].items())
        rows.append(("what mattered", ", ".join(shares)))
    rows += [("updates of trial 0", number(summary["steps"])), ("recipe", summary["recipe"])]
    rows.append(("plot", summary["plot"]))
    return [*rows, ("model of the best", summary["run"])] if "run" in summary else rows
