"""What the bench commands share: options, a work folder, printing rows."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from elman.base.errors import UsageError
from elman.bench.measuring import Row
from elman.terminal.console import number, result, result_json, table, talk

Repeat = Annotated[int, Option(min=1, metavar="N", help="Rounds; peers take turns.")]
Threads = Annotated[int | None, Option(min=1, metavar="N", help="Threads. [default: one per core]")]


@contextmanager
def work_folder(folder: Path | None = None) -> Iterator[Path]:
    """`folder`, created if needed, or a temporary one that is removed afterwards."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="elman-bench-") as temporary:
        yield Path(temporary)


def note(text: str) -> None:
    talk(f"· {text}")


def progress(rows: Iterable[Row]) -> Iterator[Row]:
    """Pass rows on, and print a line on stderr for each."""
    for row in rows:
        ratio = "" if row.ratio is None else f": {row.ratio:.2f}"
        note(f"{row.name}{_shape(row.settings)}{ratio}")
        yield row


def show(rows: Iterable[Row], *, json: bool) -> None:
    """Print rows: a table, or one line of JSON for each as it arrives."""
    if json:
        for row in rows:
            unknown = {"error", "peer_error"} if row.error is None else set()
            result_json({key: value for key, value in asdict(row).items() if key not in unknown})
        return
    rows = list(rows)
    has_errors = any(row.error is not None for row in rows)
    lines = [
        (
            row.name + _shape(row.settings),
            number(row.ours),
            "" if row.peer is None else number(row.peer),
            "" if row.ratio is None else f"{row.ratio:.2f}",
            row.unit,
            *(
                "" if error is None else f"{error:.1e}"
                for error in ((row.error, row.peer_error) if has_errors else ())
            ),
        )
        for row in rows
    ]
    header = ("what", "ours", "peer", "ratio", "unit")
    result(table(lines, header=(*header, "error", "peer's") if has_errors else header))


def _shape(settings: dict[str, Any]) -> str:
    """` 2x512, batch 64, 128 steps` for rows about a recurrent network."""
    if "hidden_size" not in settings:
        return ""
    names = ("num_layers", "hidden_size", "batch_size", "num_steps")
    layers, hidden, batch, steps = (settings[name] for name in names)
    return f" {layers}x{hidden}, batch {batch}, {steps} steps"


def parse_count(text: str) -> int:
    """Parse 1000000, 1M or 300k."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmM]?)", text.strip())
    factor = {"": 1, "k": 10**3, "m": 10**6}
    count = int(float(found[1]) * factor[found[2].lower()]) if found else 0
    if count < 1:
        raise UsageError(f"'{text}' is not a positive number", "write it as 300k or 10M")
    return count
