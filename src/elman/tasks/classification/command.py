"""`elman classify`: label texts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import tee
from json import dumps as json_text
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from elman.terminal.console import result, result_json_list
from elman.terminal.options import Json, MaxLine, argument, option
from elman.terminal.stdin import read_lines

if TYPE_CHECKING:
    from elman.tasks.classification.handle import Classifier

TABLES = (".tsv", ".csv", ".jsonl", ".ndjson")


def classify(
    handle: Classifier,
    file: Annotated[
        str,
        argument(
            "[FILE|-]",
            "Texts, one per line; of .tsv, .csv and .jsonl the column of texts; - is stdin.",
        ),
    ] = "-",
    text_column: Annotated[
        str | None,
        option("NAME|N", "The column with the texts. [default: detected]"),
    ] = None,
    jsonl: Annotated[
        bool, option(None, "Print one object per line, with every probability.", "--jsonl")
    ] = False,
    max_line: MaxLine = None,
    json: Json = False,
) -> None:
    """Print the label of each text, its probability, and the text, as a table with tabs.

    With --json, a list of objects with the probability of every label; with --jsonl the objects
    alone, one per line.
    """
    texts, kept = tee(_texts(file, text_column))
    found = zip(kept, handle.classify_all(texts), strict=True)
    objects = ({**vars(one), "text": text} for text, one in found)
    if json:
        result_json_list(objects)
        return
    if not jsonl:
        result("label\tprobability\ttext")
    for each in objects:
        if jsonl:
            result(json_text(each, ensure_ascii=False))
        else:
            text = each["text"].replace("\t", " ")
            result(f"{each['label']}\t{each['probability']:.4f}\t{text}")


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
        yield from (text for text, _ in read_rows(path, columns, labels_needed=False))
