"""Draw `elman bench kernels`: time per step over units and batch, tokens/s over length."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from elman.bench.rows import Row
from elman.evaluate.pictures import new_figure, save

PANELS = (
    ("hidden_size", "units", "us per time step"),
    ("batch_size", "batch", "us per time step"),
    ("num_steps", "time steps", "tokens/s"),
)
"""The setting on the x axis, its label, and the unit on the y axis."""


def draw(rows: Sequence[Row], path: Path) -> None:
    """Write the plot; the file's extension gives the format."""
    figure = new_figure(12, 3.8)
    axes = figure.subplots(1, len(PANELS))
    for axis, (key, label, unit) in zip(axes, PANELS, strict=True):
        ticks: set[int] = set()
        for number, name in enumerate(dict.fromkeys(row.name for row in rows)):
            chosen = _along([row for row in rows if row.name == name], key)
            places = [row.settings[key] for row in chosen]
            ticks |= set(places)
            for style, who in (("-", "ours"), ("--", chosen[0].settings["beside"])):
                values = [_value(row, who == "ours", unit) for row in chosen]
                line = {"color": f"C{number}", "marker": "o", "markersize": 3}
                axis.plot(places, values, style, **line, label=f"{name}: {who}")
        axis.set(xscale="log", yscale="log", xlabel=label, ylabel=unit)
        axis.set_xticks(sorted(ticks), map(str, sorted(ticks)))
        axis.xaxis.minorticks_off()
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, fontsize=7)
    save(figure, path)


def _along(rows: Sequence[Row], key: str) -> list[Row]:
    """The largest group of rows that differ only in `key`, sorted by it."""
    others = [panel[0] for panel in PANELS if panel[0] != key]
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.settings[name] for name in others), []).append(row)
    largest = max(groups.values(), key=len)
    return sorted(largest, key=lambda row: int(row.settings[key]))


def _value(row: Row, ours: bool, unit: str) -> float:
    microseconds = row.ours if ours else row.peer
    assert microseconds is not None
    if unit != "tokens/s":
        return microseconds
    batch_size: int = row.settings["batch_size"]
    return batch_size / microseconds * 1e6
