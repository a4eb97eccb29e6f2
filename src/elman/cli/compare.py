"""`elman compare`: what differs between runs, and their best figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from elman.base.origins import origin
from elman.terminal.console import (
    duration,
    figure,
    number,
    result,
    result_json,
    spoken,
    table,
    talk_notes,
)
from elman.terminal.options import Json, argument

if TYPE_CHECKING:
    from elman.tasks.comparing import ComparedRun

MOST_COLUMNS = 8
"""With more settings than this, each run is a column instead of a row."""


def compare(
    runs: Annotated[list[str], argument("RUN...", "Run folders, or folders of runs.")],
    json: Json = False,
) -> None:
    """Compare runs: the settings that differ, and the best figures.

    The best run is first: by bits per byte, or by the metric of the task. A run that has not ended
    is marked with *.
    """
    from elman.tasks.comparing import compare as compare_runs

    found, others = compare_runs(runs)
    if others:
        talk_notes([f"left out, as they are no run folders: {', '.join(map(str, others))}"])
    if json:
        result_json([vars(run) for run in found])
        return
    if any("tokenizer.kind" in run.settings for run in found):
        talk_notes(
            [
                "perplexities of different tokens cannot be compared; bits per byte can, "
                "on the same text and with few unknown tokens"
            ]
        )
    texts = [name for name in ("validation", "test") if _differ(found, name)]
    if texts:
        talk_notes(
            [
                f"the runs have different shares of unknown tokens in their {' and '.join(texts)} "
                "texts: their perplexities and bits per byte do not compare; train "
                "with one tokenizer (--tokenizer RUN/tokenizer.json) and measure on one text"
            ]
        )
    if not all(run.finished for run in found):
        talk_notes(["*: the run has not ended"])
    settings = list({name: None for run in found for name in run.settings})
    figures = list({name: None for run in found for name in run.figures})
    unknown = [f"{name} unknown tokens" for name in texts]
    header = ["run", *_short(settings), *map(spoken, figures), *unknown, "updates", "time"]
    rows = [_row(run, settings, figures, texts) for run in found]
    if len(settings) > MOST_COLUMNS:
        turned = [list(column) for column in zip(header, *rows, strict=True)]
        result(table(turned[1:], header=turned[0]))
    else:
        result(table(rows, header=header))


def _differ(runs: Sequence[ComparedRun], text: str) -> bool:
    """Whether the runs have different shares of unknown tokens in their validation or test."""
    return len({f"{run.unknown[text]:.2%}" for run in runs if text in run.unknown}) > 1


def _row(
    run: ComparedRun, settings: Sequence[str], figures: Sequence[str], texts: Sequence[str]
) -> list[str]:
    return [
        run.run + ("" if run.finished else "*"),
        *(_shown(run.settings.get(name)) for name in settings),
        *(
            figure(n.removeprefix("test_"), run.figures[n]) if n in run.figures else ""
            for n in figures
        ),
        *(f"{run.unknown[name]:.2%}" if name in run.unknown else "" for name in texts),
        "" if run.steps is None else number(run.steps),
        "" if run.seconds is None else duration(run.seconds),
    ]


def _short(names: Sequence[str]) -> list[str]:
    """The last parts of dotted names where they are unique."""
    last = [name.rpartition(".")[2] for name in names]
    return [one if last.count(one) == 1 else name for one, name in zip(last, names, strict=True)]


def _shown(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_shown, value))
    if isinstance(value, str) and "/" in value:
        return Path(origin(value)).name
    return "" if value is None else str(value)
