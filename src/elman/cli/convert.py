"""`elman convert`: a model in another form."""

from __future__ import annotations

from typing import Annotated

import typer

from elman.cli.console import number, result, result_json, size, table
from elman.cli.options import Json


def convert(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="An n-gram run or an ARPA file.", show_default=False),
    ],
    out: Annotated[
        str,
        typer.Argument(
            metavar="OUT",
            help="A new .arpa or .arpa.gz file; or, of an ARPA file, a new run folder.",
            show_default=False,
        ),
    ],
    json: Json = False,
) -> None:
    """Write a model in another form, which the name of OUT tells.

    An n-gram run becomes an ARPA file, for KenLM, SRILM and others. An ARPA file becomes a run
    folder, which opens in milliseconds.
    """
    from elman.recipes.convert import convert as write

    written = write(model, out)
    if json:
        result_json(written)
        return
    rows = [(f"{n}-grams", number(count)) for n, count in enumerate(written["ngrams"], start=1)]
    rows += [("size on disk", size(written["bytes"])), ("written to", written["out"])]
    rows += [("note", note) for note in written["notes"]]
    result(table(rows))
