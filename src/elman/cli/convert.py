"""`elman convert`: a model in another form."""

from __future__ import annotations

from typing import Annotated

import typer

from elman.terminal.console import number, result, result_json, size, table
from elman.terminal.options import Json


def convert(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="An n-gram or ELMo run, or an ARPA file.", show_default=False
        ),
    ],
    out: Annotated[
        str,
        typer.Argument(
            metavar="OUT",
            help="A new .arpa or .arpa.gz file; or a new folder: a run of an ARPA file, ELMo's "
            "published files of an ELMo run.",
            show_default=False,
        ),
    ],
    json: Json = False,
) -> None:
    """Write a model in another form, which the name of OUT tells.

    An n-gram run becomes an ARPA file, for KenLM, SRILM and others. An ARPA file becomes a run
    folder, which opens in milliseconds. An ELMo run becomes a folder with options.json and
    lm_weights.hdf5, which other programs read.
    """
    from elman.recipes.convert import convert as write

    written = write(model, out)
    if json:
        result_json(written)
        return
    if "ngrams" in written:
        rows = [(f"{n}-grams", number(count)) for n, count in enumerate(written["ngrams"], start=1)]
    else:
        rows = [(name, number(written[name])) for name in ("layers", "size")]
    rows += [("size on disk", size(written["bytes"])), ("written to", written["out"])]
    rows += [("note", note) for note in written["notes"]]
    result(table(rows))
