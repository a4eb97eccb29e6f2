"""The manners of the command line: results on stdout, talk on stderr, JSON for programs.

Tables are plain aligned text, which a terminal, a pager and `cut` all understand.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

SHARES = {"accuracy", "balanced_accuracy", "unknown_accuracy"} | {
    *("f1", "macro_f1", "precision", "recall"),
}
"""Figures that are shares of one, and are shown as per cent."""
NAMES = {"bleu": "BLEU", "chrf": "chrF", "cider": "CIDEr"}
"""Figures whose names are written in a way of their own."""


def talk(text: str = "") -> None:
    """Say something to the person at the terminal, apart from the results."""
    print(text, file=sys.stderr, flush=True)


def talk_notes(notes: Iterable[str]) -> None:
    """Say what a user should know about a model before its results."""
    for note in notes:
        talk(f"· {note}")


def result(text: str) -> None:
    """Print one result."""
    print(text)


def result_json(value: Any) -> None:
    """Print one result as a line of JSON, with null for what JSON has no number for (infinity)."""
    print(_json(value))


def result_json_list(values: Iterable[Any]) -> None:
    """Print a JSON list, each value on its own line as it comes, so that memory does not grow."""
    separator = "["
    for value in values:
        print(separator, _json(value), sep="", end="")
        separator = ",\n"
    print("[]" if separator == "[" else "]")


def _json(value: Any) -> str:
    return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value


def table(rows: Sequence[Sequence[object]], header: Sequence[str] = ()) -> str:
    """Rows as aligned columns, two spaces apart; numbers lean right, words lean left."""
    cells = [[_cell(value) for value in row] for row in rows]
    right = [
        all(isinstance(row[i], (int, float)) for row in rows)
        for i in range(len(rows[0]) if rows else len(header))
    ]
    lines = [list(header), *cells] if header else cells
    widths = [max(len(line[i]) for line in lines) for i in range(len(right))]
    return "\n".join(
        "  ".join(
            text.rjust(width) if lean else text.ljust(width)
            for text, width, lean in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )


def _cell(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "" if value is None else str(value)
    return number(value)


def number(value: float) -> str:
    """A number as a person reads it: thousands separated, four significant digits of a fraction."""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def figure(name: str, value: float) -> str:
    """A figure of an evaluation as a person reads it: shares as per cent, scores as they are."""
    if name in SHARES:
        return f"{value:.2%}"
    return f"{value:.4f}" if name in ("nats_per_token", "bits_per_byte") else number(value)


def spoken(name: str) -> str:
    """A figure's name in words."""
    return NAMES.get(name) or name.replace("_", " ")


def duration(seconds: float) -> str:
    """Seconds as a person reads them: `8 s`, `4 min 05 s`, `2 h 10 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    return f"{minutes // 60} h {minutes % 60:02} min"


def size(num_bytes: int) -> str:
    """A number of bytes as a person reads it."""
    value = float(num_bytes)
    for unit in ("bytes", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"
