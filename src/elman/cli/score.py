"""`elman score`: surprisal of a text, as a table for statistics programs."""

from __future__ import annotations

from dataclasses import asdict
from itertools import chain, islice
from typing import Annotated, Any

from elman.terminal.console import result, result_json_list, talk_notes
from elman.terminal.options import Device, Json, Label, Model, argument, option
from elman.terminal.stdin import read_lines

COLUMNS = ("line", "index", "text", "surprisal", "unknown", "start", "end", "num_tokens")
ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}


def score(
    model: Model,
    file: Annotated[str, argument("[FILE|-]", "Text, one item per line; - reads stdin.")] = "-",
    unit: Annotated[str, option("token|word|line", "Unit of a row.")] = "token",
    base: Annotated[str, option("2|e|10", "Base of the logarithm: bits, nats or bans.")] = "2",
    boundary: Annotated[
        str,
        option("trailing|leading", "Count the space between two words with the first or second."),
    ] = "trailing",
    unknown: Annotated[
        str,
        option("score|mark", "Score unknown words as <unk>, or leave their surprisal empty."),
    ] = "score",
    carry: Annotated[bool, option(None, "Read the lines as one text.", "--carry")] = False,
    end: Annotated[bool, option(None, "Count the end of each line.")] = True,
    label: Label = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Print the surprisal of each token, word or line.

    The table is tab-separated, with a header. With --json, a list of objects with the same keys.
    """
    from elman.api import LM, load
    from elman.evaluate.surprisal import surprisals

    lm = load(model, device=device, kind=LM, label=label)
    talk_notes(lm.notes)
    policies: dict[str, Any] = {"unit": unit, "base": base, "boundary": boundary}
    policies |= {"unknown": unknown, "carry": carry, "include_end": end}
    rows = surprisals(lm.model, lm.tokenizer, read_lines(file), **policies)
    if json:
        result_json_list(asdict(row) for row in rows)
        return
    first = list(islice(rows, 1))  # raise errors before anything is printed
    result("\t".join(COLUMNS))
    for row in chain(first, rows):
        result("\t".join(_cell(getattr(row, column)) for column in COLUMNS))


def _cell(value: object) -> str:
    """Format a TSV cell: escape tabs and line ends, booleans as 0 and 1, six decimals."""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        return f"{value:.6f}"
    if value is None:
        return ""
    return "".join(ESCAPES.get(c, c) for c in str(value))
