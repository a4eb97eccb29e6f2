"""`elman classify`: labels for the user's own texts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import tee
from json import dumps as json_text
from pathlib import Path
from typing import Annotated

import typer

from elman.terminal.console import result, result_json_list
from elman.terminal.options import Device, Json, Model
from elman.terminal.stdin import read_lines

TABLES = (".tsv", ".csv", ".jsonl", ".ndjson")


def classify(
    model: Model,
    file: Annotated[
        str,
        typer.Argument(
            metavar="[FILE|-]",
            help="Texts, one a line; of .tsv, .csv and .jsonl the column of texts; - is stdin.",
            show_default=False,
        ),
    ] = "-",
    text_column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|N", help="The column with the texts. [default: it is found out]"
        ),
    ] = None,
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help="Print an object a line, with every probability.")
    ] = False,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Print the label of each text, its probability, and the text, as a table with tabs.

    With --json, a list of objects with the probability of every label; with --jsonl the objects
    alone, a line each.
    """
    from elman.api import load
    from elman.tasks.classification.handle import Classifier

    classifier = load(model, device=device, kind=Classifier)
    texts, kept = tee(_texts(file, text_column))
    found = zip(kept, classifier.classify_all(texts), strict=True)
    objects = (
        {
            "label": one.label,
            "probability": one.probability,
            "probabilities": one.probabilities,
            "text": text,
        }
        for text, one in found
    )
    if json:
        result_json_list(objects)
        return
    if not jsonl:
        result("label\tprobability\ttext")
    for found_one in objects:
        if jsonl:
            result(json_text(found_one, ensure_ascii=False))
        else:
            text = str(found_one["text"]).replace("\t", " ")
            result(f"{found_one['label']}\t{found_one['probability']:.4f}\t{text}")


def _texts(file: str, text_column: str | None) -> Iterator[str]:
    """The texts of a file: its lines, or a column of a table."""
    from elman.tasks.classification.reading import Columns, read_rows
    from elman.text.sources import expand

    name = Path(file).name.removesuffix(".gz").removesuffix(".zst")
    if file == "-" or not (text_column or name.endswith(TABLES)):
        yield from read_lines(file)
        return
    for path in expand([Path(file)]):
        columns = Columns("", text_column or "")
        yield from (row.text for row in read_rows(path, columns, labels_needed=False))
