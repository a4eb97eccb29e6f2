"""The same language model with different cells, for the same time or as many updates.

Cells of one width differ in weights and in speed. `layer_weights` gives each the width with which
its layers have about as many weights, and so take about as many multiplications for a token.

Finished cells are lines of a JSONL file: a bench that was stopped continues.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from json import dumps
from pathlib import Path
from shutil import rmtree
from typing import Any

from elman.base.config import parse_overrides
from elman.base.counting import counted
from elman.base.documents import read_json_lines
from elman.bench.by_speed import Timed, timed
from elman.bench.rows import Row, less_is_better, more_is_better, note
from elman.bench.training import run_config
from elman.nn.stack import Stack
from elman.recipes.resolve import resolve
from elman.train.files import METRICS_FILE

CELLS_FILE = "cells.jsonl"
LAYERS = 2
"""Unless others are asked for: cells that train in parallel over time need several."""
MOST_WIDTH = 4096
FIGURES = ("perplexity", "bits_per_byte", "steps", "tokens", "seconds", "tokens_per_second")


@dataclass(frozen=True)
class CellPlan:
    """What the cells have in common."""

    data: str
    settings: tuple[str, ...] = ()
    minutes: float = 2.0
    steps: int | None = None
    """Updates, instead of minutes."""
    layer_weights: int = 0
    """Weights of the layers; 0: the width is that of the settings."""
    by_speed: bool = False
    seed: int = 1

    def about(self) -> dict[str, Any]:
        """What tells the rows of this plan from others."""
        return {**asdict(self), "settings": list(self.settings)}

    def config(self, cell: str) -> Any:
        """The resolved settings of a cell."""
        given = [f"model.num_layers={LAYERS}", *self.settings, f"model.cell={cell}"]
        length = {"steps": self.steps} if self.steps else {"minutes": self.minutes}
        config = resolve(
            "lm", [self.data], settings=parse_overrides(given), seed=self.seed, **length
        ).config
        if self.layer_weights:
            width = fitting_width(config.model, self.layer_weights)
            config = replace(config, model=replace(config.model, hidden_size=width))
        return config


def num_weights(model: Any) -> int:
    """The number of weights in the layers of a model with these settings."""
    return sum(one.numel() for one in Stack(model, model.embedding_size).parameters())


def fitting_width(model: Any, wanted: int) -> int:
    """The width, a multiple of 8, with which the layers have nearest to `wanted` weights."""

    def weights(width: int) -> int:
        return num_weights(replace(model, hidden_size=width))

    widths = range(8, MOST_WIDTH + 1, 8)
    place = bisect_left(widths, wanted, key=weights)
    return min(
        widths[max(0, place - 1) : place + 1], key=lambda width: abs(weights(width) - wanted)
    )


def compare_cells(
    plan: CellPlan, cells: list[str], out: Path, *, within: float | None = None
) -> Iterator[Row]:
    """Train the cells that `out` does not have; the first one is the peer of the others.

    Starts none that would end more than `within` minutes from now.
    """
    started, kept = time.monotonic(), _finished(plan, out)
    missing = [cell for cell in cells if cell not in kept]
    speeds = {cell: _timed(plan, cell, out) for cell in missing} if plan.by_speed else {}
    for cell in missing:
        if within is not None and time.monotonic() - started > 60 * (within - plan.minutes):
            break
        row = _trained(plan, cell, speeds.get(cell), out / "run")
        kept[cell] = {"cell": cell, **row, "plan": plan.about()}
        with (out / CELLS_FILE).open("a", encoding="utf-8") as file:
            file.write(dumps(kept[cell]) + "\n")
        note(f"{cell}: {row['perplexity']:.3f}, {counted(row['steps'], 'update')}")
    done = [kept[cell] for cell in cells if cell in kept]
    for row in done:
        about = {name: row[name] for name in ("cell", "steps", "seconds", "width", "weights")}
        for name, key, unit, better in (
            ("training", "tokens_per_second", "tokens/s", more_is_better),
            ("validation", "perplexity", "perplexity", less_is_better),
        ):
            first = done[0]
            title = f"{row['cell']}: {name}"
            yield better(title, row[key], first[key], unit, **about, beside=first["cell"])


def _finished(plan: CellPlan, out: Path) -> dict[str, dict[str, Any]]:
    """The rows of a plan in a folder, by cell."""
    rows = read_json_lines(out / CELLS_FILE, missing_ok=True)
    return {row["cell"]: row for row in rows if row["plan"] == plan.about()}


def _timed(plan: CellPlan, cell: str, out: Path) -> Timed:
    """The run of a cell by its speed, which is measured if `out` does not have it."""
    key = {"cell": cell, "plan": plan.about()}
    return timed(out, key, plan.minutes, lambda: plan.config(cell), "auto")


def _trained(plan: CellPlan, cell: str, speed: Timed | None, folder: Path) -> dict[str, Any]:
    config = plan.config(cell) if speed is None else speed.config
    rmtree(folder, ignore_errors=True)
    summary, _ = run_config(config, folder)
    reports = read_json_lines(folder / METRICS_FILE)
    rmtree(folder)
    row: dict[str, Any] = {name: summary[name] for name in FIGURES}
    if speed is not None:
        row["tokens_per_second"] = speed.updates_per_second * summary["tokens"] / summary["steps"]
    return {
        **row,
        "width": config.model.hidden_size,
        "weights": num_weights(config.model),
        "learning_rate": config.optimiser.learning_rate,
        "curve": [
            [report["step"], report["valid_perplexity"]]
            for report in reports
            if report["kind"] == "valid"
        ],
    }
