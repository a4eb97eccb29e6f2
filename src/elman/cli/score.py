"""`elman score`: surprisal of a text, as a table for statistics programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import chain, islice
from typing import Annotated, Any

from elman.base.counting import counted
from elman.evaluate.policies import Policies
from elman.terminal.console import (
    reading_notes,
    result,
    result_json_list,
    talk_notes,
    unknown_note,
)
from elman.terminal.options import (
    AsIs,
    Device,
    Json,
    Label,
    Model,
    Shown,
    argument,
    option,
    with_options,
)
from elman.terminal.stdin import Lines

COLUMNS = ("line", "index", "text", "surprisal", "unknown", "start", "end", "num_tokens")
ENTROPY = ("entropy", "entropy_reduction")
LONGEST_SCORED = 1 << 27
"""Default limit on the bytes of a line: long lines are scored in pieces, but read whole."""
ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}


@with_options(Policies, *(f.name for f in fields(Policies)), include_end=Shown(default="end"))
def score(
    model: Model,
    file: Annotated[str, argument("[FILE|-]", "Text, one item per line; - reads stdin.")] = "-",
    *,
    options: dict[str, Any],
    as_is: AsIs = False,
    label: Label = None,
    device: Device = "auto",
    max_line: Annotated[
        int | None, option("BYTES", f"Refuse longer lines. [default: {LONGEST_SCORED}]", min=1)
    ] = None,
    json: Json = False,
) -> None:
    """Print the surprisal of each token, word or line.

    The table is tab-separated, with a header. With --json, a list of objects with the same keys. A
    model of maximum likelihood has one more column: whether its estimate is undefined (0/0).
    """
    from elman.api import LM, load
    from elman.evaluate.surprisal import Totals, surprisals
    from elman.tokens.fitting import SAMPLE_LINES, count_unknown

    policies = Policies(**options)  # report a wrong option before reading a large model
    lm = load(model, device=device, kind=LM, label=label)
    with Lines(file, LONGEST_SCORED if max_line is None else max_line) as lines:
        tokenizer = lm.tokenizer if as_is else lm.fitted(list(islice(lines, SAMPLE_LINES)))
        if tokenizer.unknown_id is not None:
            found = count_unknown(tokenizer, lines, include_end=policies.include_end)
            talk_notes([unknown_note(*found)])
        talk_notes([*reading_notes(tokenizer.reads_as), *lm.notes])
        rows = surprisals(lm.model, tokenizer, lines, **options)
        columns = [*COLUMNS, *(ENTROPY if policies.entropy else ())]
        columns += ["undefined"] if lm.can_be_undefined else []
        undefined, totals = 0, Totals(policies.base)

        def shown() -> Iterator[dict[str, Any]]:
            nonlocal undefined
            for row in rows:
                undefined += row.undefined
                totals.add(row)
                yield {column: getattr(row, column) for column in columns}

        show(columns, shown(), json=json)
    talk_notes([str(totals)])
    if undefined:
        from elman.ngrams.smoothing import UNDEFINED

        talk_notes([f"{counted(undefined, 'row')} with undefined estimates: {UNDEFINED}"])


def show(columns: Sequence[str], rows: Iterator[dict[str, Any]], *, json: bool) -> None:
    """Print rows as a tab-separated table, or as a JSON list."""
    if json:
        result_json_list(rows)
        return
    first = list(islice(rows, 1))  # raise errors before anything is printed
    result("\t".join(columns))
    for row in chain(first, rows):
        result("\t".join(map(_cell, row.values())))


def _cell(value: object) -> str:
    """Format a TSV cell: escape tabs and line ends, booleans as 0 and 1, six decimals."""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        return f"{value:.6f}"
    if value is None:
        return ""
    return "".join(ESCAPES.get(c, c) for c in str(value))
