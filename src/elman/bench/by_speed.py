"""Runs of equal minutes that other programs do not disturb (`--by-speed`).

The speed of a run is measured for some seconds, by processor time. The run then makes the updates
that this speed allows in the minutes, however long they take: its learning rate falls with the
updates. Start, validation and saving are left out of the minutes.

Speeds are kept, with the settings that were resolved then: automatic ones depend on how fast the
machine seemed. `--within 0` measures speeds and trains nothing, for when a machine is idle shortly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from json import dumps
from pathlib import Path
from typing import Any

from elman.base.config import to_dict
from elman.base.documents import read_json_lines
from elman.bench.rows import note
from elman.recipes.resolve import read_over
from elman.recipes.speed import Interrupted, training_speed
from elman.tasks import task_named

SPEEDS_FILE = "speeds.jsonl"
SECONDS = 8.0
"""Of a measurement at least."""


@dataclass(frozen=True)
class Timed:
    """A run whose length follows from its speed."""

    config: Any
    """Its settings, with the number of updates."""
    updates_per_second: float


def timed(
    out: Path,
    key: Mapping[str, Any],
    minutes: float,
    resolve: Callable[[], Any],
    device: str,
) -> Timed:
    """Measure the run called `key`, or take what `out` has of it; `resolve` makes its settings."""
    row = _kept(out, key)
    if row is None:
        resolved = resolve()
        try:
            speed = training_speed(resolved, out / "speed", device, seconds=SECONDS)
        except Interrupted as stopped:
            raise KeyboardInterrupt from stopped
        row = {**key, "updates_per_second": speed.idle_updates}
        row |= {"tokens_per_second": speed.idle_tokens, "config": to_dict(resolved)}
        with (out / SPEEDS_FILE).open("a", encoding="utf-8") as file:
            file.write(dumps(row) + "\n")
        name = ", ".join(str(value) for value in key.values() if not isinstance(value, dict))
        note(f"{name}: {speed.idle_updates:.2f} updates/s, {speed.idle_tokens:,.0f} tokens/s")
    length = {"minutes": None, "epochs": None}
    length |= {"steps": max(1, round(60 * minutes * row["updates_per_second"]))}
    config: Any
    config, _ = read_over(task_named(row["config"]["task"]), dict(row["config"]), {})
    config = replace(config, training=replace(config.training, **length))
    return Timed(config, row["updates_per_second"])


def _kept(out: Path, key: Mapping[str, Any]) -> dict[str, Any] | None:
    """The last speed of this name in a folder."""
    rows = [
        row
        for row in read_json_lines(out / SPEEDS_FILE, missing_ok=True)
        if {name: row.get(name) for name in key} == dict(key)
    ]
    return rows[-1] if rows else None
