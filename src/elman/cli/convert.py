"""`elman convert`: convert a model to another format."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from elman.tasks import Task
from elman.tasks.task import conversions
from elman.terminal.console import number, result, result_json, size, table
from elman.terminal.options import Json, argument, option


def help_for(tasks: Iterable[Task]) -> str:
    possible = [f"{one[0].upper()}{one[1:]}." for one in conversions(tasks)]
    return f"Convert a model to another format.\n\n{' '.join(possible)}"


def convert(
    model: Annotated[
        str, argument("MODEL", "A run folder, a published model, or a tokenizer of another tool.")
    ],
    out: Annotated[str, argument("OUT", "A new file or folder; its name says the format.")],
    to: Annotated[
        str | None, option("hf", "Write a folder for Hugging Face's transformers.")
    ] = None,
    side: Annotated[
        str | None,
        option(
            "source|target", "Word vectors of a model with two tables: which one. [default: source]"
        ),
    ] = None,
    quantise: Annotated[
        str | None,
        option(
            "int8|BITS",
            "Write weights of one byte: a smaller run folder or ONNX file. Of an n-gram model, "
            "numbers of BITS bits: 8, or 8,6 for probabilities and back-off weights.",
        ),
    ] = None,
    layout: Annotated[
        str | None,
        option("plain|compact", "Write an n-gram run: fast, or packed into fewer bits."),
    ] = None,
    json: Json = False,
) -> None:
    from elman.recipes.convert import convert as write

    written = write(model, out, to=to, side=side, quantise=quantise, layout=layout)
    if json:
        result_json(written)
        return
    rows = [(f"{n}-grams", number(c)) for n, c in enumerate(written.get("ngrams", ()), start=1)]
    rows += [
        (name, number(written[name]))
        for name in ("layers", "words", "tokens", "size")
        if name in written
    ]
    rows += [("layout", written["layout"])] if "layout" in written else []
    rows += [("size on disk", size(written["bytes"])), ("written to", written["out"])]
    rows += [("note", note) for note in written["notes"]]
    result(table(rows))
