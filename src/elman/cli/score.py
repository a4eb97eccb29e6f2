"""`elman score`: surprisal of a text, as a table for statistics programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from itertools import chain, islice
from typing import Annotated, Any

from elman.base.counting import counted
from elman.cli.default_model import MaybeModel, model_or_default
from elman.evaluate.policies import Policies
from elman.runs.packaged import MEASURERS
from elman.terminal.adapting import adapted, ways_to_adapt
from elman.terminal.console import result, result_json_list, talk_notes
from elman.terminal.options import (
    Adapt,
    AdaptSettings,
    Cache,
    Device,
    Json,
    Label,
    Shown,
    Tune,
    argument,
    option,
    with_options,
)
from elman.terminal.stdin import read_lines

COLUMNS = ("line", "index", "text", "surprisal", "unknown", "start", "end", "num_tokens")
LONGEST_SCORED = 1 << 27
"""Default limit on the bytes of a line: long lines are scored in pieces, but read whole."""
ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}


@with_options(Policies, *(f.name for f in fields(Policies)), include_end=Shown(default="end"))
def score(
    model: MaybeModel = None,
    file: Annotated[
        str | None, argument("[FILE|-]", "Text, one item per line; - reads stdin.")
    ] = None,
    *,
    options: dict[str, Any],
    adapt: Adapt = False,
    cache: Cache = False,
    tune: Tune = None,
    settings: AdaptSettings = None,
    label: Label = None,
    device: Device = "auto",
    max_line: Annotated[
        int | None, option("BYTES", f"Refuse longer lines. [default: {LONGEST_SCORED}]", min=1)
    ] = None,
    json: Json = False,
) -> None:
    """Print the surprisal of each token, word or line.

    The table is tab-separated, with a header. With --json, a list of objects with the same keys. A
    model of maximum likelihood has one more column: whether its estimate is undefined (0/0). With
    --adapt or --cache the lines are read in order and change the predictions of those after them.
    """
    from elman.api import LM, load
    from elman.evaluate.surprisal import surprisals

    Policies(**options)  # report a wrong option before reading a large model
    ways = ways_to_adapt(adapt=adapt, cache=cache, settings=settings)
    model, file = model_or_default(model, file, MEASURERS)
    file = file or "-"
    lm = adapted(load(model, device=device, kind=LM, label=label), ways, tune)
    talk_notes(lm.notes)
    lines = read_lines(file, LONGEST_SCORED if max_line is None else max_line)
    rows = surprisals(lm.model, lm.tokenizer, lines, **options)
    columns = (*COLUMNS, "undefined") if lm.can_be_undefined else COLUMNS
    undefined = 0

    def shown() -> Iterator[dict[str, Any]]:
        nonlocal undefined
        for row in rows:
            undefined += row.undefined
            yield {column: getattr(row, column) for column in columns}

    if json:
        result_json_list(shown())
    else:
        cells = shown()
        first = list(islice(cells, 1))  # raise errors before anything is printed
        result("\t".join(columns))
        for row in chain(first, cells):
            result("\t".join(map(_cell, row.values())))
    if undefined:
        from elman.ngrams.smoothing import UNDEFINED

        talk_notes([f"{counted(undefined, 'row')} with undefined estimates: {UNDEFINED}"])


def _cell(value: object) -> str:
    """Format a TSV cell: escape tabs and line ends, booleans as 0 and 1, six decimals."""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        return f"{value:.6f}"
    if value is None:
        return ""
    return "".join(ESCAPES.get(c, c) for c in str(value))
