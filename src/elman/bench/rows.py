"""The rows that benches print: our measurement beside a peer's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from elman.terminal.console import number, result, result_json, table, talk


@dataclass(frozen=True)
class Row:
    """One comparison."""

    name: str
    ours: float
    peer: float | None
    ratio: float | None
    """Above 1, Elman is faster, smaller or better than the peer."""
    unit: str
    """Of `ours` and `peer`."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Sizes, thread counts and secondary results."""
    error: float | None = None
    """Relative distance of our result from the float64 one, if the bench computes it."""
    peer_error: float | None = None


def less_is_better(name: str, ours: float, peer: float | None, unit: str, **settings: Any) -> Row:
    """A row of times or sizes."""
    return Row(name, ours, peer, None if peer is None else peer / ours, unit, settings)


def more_is_better(name: str, ours: float, peer: float | None, unit: str, **settings: Any) -> Row:
    """A row of speeds or scores; no ratio to a peer of 0."""
    return Row(name, ours, peer, ours / peer if peer else None, unit, settings)


ABOUT = ("peer is", "processor", "of large products")
"""Columns for rows that have the share of the processor's rate."""


def note(text: str) -> None:
    talk(f"· {text}")


def show(rows: Iterable[Row], *, json: bool) -> list[Row]:
    """Print a table of rows, or a line of JSON for each as it arrives; return them.

    On stderr, print a line for each as it arrives.
    """
    found, lines = [], []
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        name = row.name + _shape(row.settings)
        note(f"{name}: {ratio}" if ratio else name)
        peer = "" if row.peer is None else number(row.peer)
        errors = ["" if e is None else f"{e:.1e}" for e in (row.error, row.peer_error)]
        about = [str(row.settings.get(key, "")) for key in ("beside", "processor")]
        about.append(_share(row.settings))
        lines.append([name, number(row.ours), peer, ratio, row.unit, *errors, *about])
        found.append(row)
        if json:
            unknown = {"error", "peer_error"} if row.error is None else set()
            result_json({key: value for key, value in asdict(row).items() if key not in unknown})
    if not json:
        header = ("what", "ours", "peer", "ratio", "unit", "error", "peer's", *ABOUT)
        shown = 7 if any(row.error is not None for row in found) else 5
        shown = 10 if any("share" in row.settings for row in found) else shown
        result(table([line[:shown] for line in lines], header=header[:shown]))
    return found


def _share(settings: dict[str, Any]) -> str:
    """`58 % of 410 GFLOP/s`, for rows that have it."""
    if "share" not in settings:
        return ""
    rate: float = settings["large_product_gflops"]
    return f"{100 * settings['share']:.0f} % of {rate:.0f} GFLOP/s"


def _shape(settings: dict[str, Any]) -> str:
    """` 2x512, batch 64, 128 steps` for rows about a recurrent network."""
    if "hidden_size" not in settings:
        return ""
    names = ("num_layers", "hidden_size", "batch_size", "num_steps")
    layers, hidden, batch, steps = (settings[name] for name in names)
    return f" {layers}x{hidden}, batch {batch}, {steps} steps"
