"""The same model with different cells, each trained for as long: `elman bench equal-time`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from elman.base.errors import ElmanError
from elman.evaluate.measuring import Row
from elman.recipes.resolve import resolve
from elman.recipes.run import train


def equal_time(
    data: str,
    cells: Sequence[str],
    overrides: Sequence[str],
    folder: Path,
    *,
    minutes: float | None = None,
    steps: int | None = None,
) -> Iterator[Row]:
    """For each cell two rows: tokens per second in training, and validation perplexity in the end.

    The first cell is the peer of the others. Each trains for so many minutes, or updates: whole
    runs as `elman train lm` makes them, two layers unless `overrides` say otherwise.
    """
    first: dict[str, float] | None = None
    for cell in cells:
        resolved = resolve(
            "lm",
            [data],
            overrides=["model.num_layers=2", *overrides, f"model.cell={cell}"],
            minutes=minutes,
            steps=steps,
            seed=1,
        )
        found: dict[str, float] | None = None
        for report in train(resolved.config, folder / cell):
            found = report.summary or found
        if found is None:
            raise ElmanError("the training was stopped", "start again")
        first = first or found
        settings = {
            "cell": cell,
            "steps": found["steps"],
            "seconds": found["seconds"],
            "beside": cells[0],
        }
        speed, quality = found["tokens_per_second"], found["perplexity"]
        peer_speed, peer_quality = first["tokens_per_second"], first["perplexity"]
        yield Row(f"{cell}: training", speed, peer_speed, speed / peer_speed, "tokens/s", settings)
        yield Row(
            f"{cell}: validation",
            quality,
            peer_quality,
            peer_quality / quality,
            "perplexity",
            settings,
        )
