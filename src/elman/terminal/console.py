"""Output of commands: results on stdout, messages on stderr, JSON for programs.

Tables are plain aligned text. Generated text, tokens, names and quoted files may come from someone
else, and a terminal executes control characters; `write` makes them visible there. Pipes and files
get every byte as it is.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

_ACCURACIES = {"accuracy", "balanced_accuracy", "unknown_accuracy"}
SHARES = _ACCURACIES | {"f1", "macro_f1", "precision", "recall"}
"""Figures between 0 and 1, shown as percentages."""
NAMES = {"bleu": "BLEU", "chrf": "chrF", "cider": "CIDEr"}
"""Figures whose names have a spelling of their own."""


_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Controls of C0 without tab and line feed, DEL, C1, and changes of the direction of writing."""


def without_controls(text: str, form: str = "\\x{:02x}") -> str:
    """Write control characters as `\\x1b`, and changes of direction as `\\u202e`."""

    def shown(found: re.Match[str]) -> str:
        number = ord(found[0])
        return (form if number < 256 else "\\u{:04x}").format(number)

    return _CONTROLS.sub(shown, text)


def write(text: str, stream: TextIO | None = None) -> None:
    """Write a piece of text to stdout or to `stream`; on a terminal, without controls."""
    stream = stream or sys.stdout
    stream.write(without_controls(text) if stream.isatty() else text)


def talk(text: str = "") -> None:
    """Print a message to stderr."""
    write(f"{text}\n", sys.stderr)
    sys.stderr.flush()


def talk_notes(notes: Iterable[str]) -> None:
    for note in notes:
        talk(f"· {note}")


def unknown_note(num_unknown: int, num_tokens: int, what: str = "tokens") -> str:
    share = num_unknown / max(1, num_tokens)
    verb = "is" if num_unknown == 1 else "are"
    return f"{num_unknown:,} of {num_tokens:,} {what} {verb} unknown to the model ({share:.1%})"


def share(part: int, whole: int) -> str:
    return f"{number(part)} of {number(whole)} ({part / max(1, whole):.2%})"


def unknown_rows(summary: Mapping[str, Any], prefix: str, name: str) -> list[tuple[str, str]]:
    """The row of a summary's table that counts unknown tokens of a text, if it has any."""
    unknown = summary.get(f"{prefix}oov")
    tokens = summary.get(f"{prefix or 'valid_'}tokens", 0)
    return [(f"{name} unknown tokens", share(unknown, tokens))] if unknown else []


def reading_notes(reads_as: str) -> list[str]:
    """Say how text was changed to the form of the training text, if at all."""
    return [f"read like the training text: {reads_as} (--as-is: unchanged)"] if reads_as else []


def result(text: str) -> None:
    write(f"{text}\n")


def result_json(value: Any) -> None:
    """Print a line of JSON, with null for infinity and NaN."""
    write(f"{_json(value)}\n")


def result_json_list(values: Iterable[Any]) -> None:
    """Print a JSON list, one value per line as it comes, in constant memory."""
    separator = "["
    for value in values:
        write(f"{separator}{_json(value)}")
        separator = ",\n"
    write("[]\n" if separator == "[" else "]\n")


def _json(value: Any) -> str:
    text = json.dumps(finite(value), ensure_ascii=False, allow_nan=False)
    return without_controls(text, "\\u{:04x}") if sys.stdout.isatty() else text  # still JSON


def finite(value: Any) -> Any:
    """Replace the numbers that JSON does not have by None."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def table(rows: Sequence[Sequence[object]], header: Sequence[str] = ()) -> str:
    """Align rows in columns, two spaces apart: numbers right, text left."""
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
    """Format with thousands separators, or four significant digits of a fraction."""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def figure(name: str, value: float) -> str:
    """Format a figure of an evaluation: shares as percentages."""
    if name in SHARES:
        return f"{value:.2%}"
    return f"{value:.4f}" if name in ("nats_per_token", "bits_per_byte") else number(value)


def spoken(name: str) -> str:
    return NAMES.get(name) or name.replace("_", " ")


def visible(token: str) -> str:
    """Quote and escape a token that has spaces or control characters."""
    plain = token.isprintable() and not any(c.isspace() for c in token) and token
    return token if plain else json.dumps(token, ensure_ascii=False)


def duration(seconds: float) -> str:
    """Format as `8 s`, `4 min 05 s` or `2 h 10 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    return f"{minutes // 60} h {minutes % 60:02} min"


def size(num_bytes: int) -> str:
    value = float(num_bytes)
    for unit in ("bytes", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"
