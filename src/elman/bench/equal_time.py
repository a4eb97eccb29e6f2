"""`elman bench equal-time`: the same language model with different cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from elman.bench.measuring import Row, less_is_better, more_is_better, train_run
from elman.bench.recurrent_command import ALL_CELLS, Cells, parse_cells
from elman.bench.shared import progress, show, work_folder
from elman.terminal.options import Json, Settings


def equal_time(
    file: Annotated[str, Argument(metavar="FILE", help="Text to train on.", show_default=False)],
    minutes: Annotated[float, Option(metavar="M", help="Minutes for each cell.")] = 2.0,
    steps: Annotated[
        int | None, Option(min=1, metavar="N", help="Train for N updates instead of minutes.")
    ] = None,
    cells: Cells = ALL_CELLS,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Train the same model with different cells for the same time, and compare them.

    Training speed and validation perplexity; the first cell is the peer of the others. Settings are
    the automatic ones for the text with two layers, which cells that train in parallel over time
    need.
    """
    length = (None, steps) if steps else (minutes, None)
    with work_folder() as folder:
        rows = _compare(file, parse_cells(cells), settings or (), folder, length)
        show(progress(rows), json=json)


def _compare(
    data: str,
    cells: Sequence[str],
    overrides: Sequence[str],
    folder: Path,
    length: tuple[float | None, int | None],
) -> Iterator[Row]:
    from elman.base.config import parse_overrides
    from elman.recipes.resolve import resolve

    peer: Mapping[str, float] | None = None
    for cell in cells:
        config = resolve(
            "lm",
            [data],
            settings=parse_overrides(["model.num_layers=2", *overrides, f"model.cell={cell}"]),
            minutes=length[0],
            steps=length[1],
            seed=1,
        ).config
        found, _ = train_run(config, folder / cell)
        peer = peer or found
        settings = {"cell": cell, "steps": found["steps"], "seconds": found["seconds"]}
        for name, key, unit, row in (
            ("training", "tokens_per_second", "tokens/s", more_is_better),
            ("validation", "perplexity", "perplexity", less_is_better),
        ):
            yield row(f"{cell}: {name}", found[key], peer[key], unit, **settings, beside=cells[0])
