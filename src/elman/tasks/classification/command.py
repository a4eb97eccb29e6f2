"""`elman classify`: label texts, or pairs of texts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice, tee
from json import dumps as json_text
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from elman.base.errors import UsageError
from elman.terminal.console import result, result_json_list
from elman.terminal.options import Json, MaxLine, argument, option
from elman.terminal.stdin import noted, read_lines

if TYPE_CHECKING:
    from elman.tasks.classification.handle import Classifier
    from elman.tasks.classification.reading import Texts

TABLES = (".tsv", ".csv", ".jsonl", ".ndjson")


def classify(
    handle: Classifier,
    file: Annotated[
        str,
        argument(
            "[FILE|-]",
            "Texts, one per line (or two, separated by a tab); of .tsv, .csv and .jsonl the "
            "columns of texts; - is stdin.",
        ),
    ] = "-",
    text_column: Annotated[
        str | None,
        option("NAME|N", "The column with the texts. [default: detected]"),
    ] = None,
    second_column: Annotated[
        str | None,
        option("NAME|N", "Pairs: the column with the second text. [default: as in training]"),
    ] = None,
    jsonl: Annotated[
        bool, option(None, "Print one object per line, with every probability.", "--jsonl")
    ] = False,
    max_line: MaxLine = None,
    json: Json = False,
) -> None:
    """Print the label of each text, with its probability.

    The output is tab-separated: label, probability, text or pair of texts. With --json, a list of
    objects with the probability of every label; with --jsonl the objects alone, one per line.
    """
    if second_column is not None and not handle.takes_pairs:
        raise UsageError(f"{handle.name} labels single texts", "drop --second-column")
    rows, kept = tee(_rows(handle, file, text_column, second_column))
    found = zip(kept, handle.classify_all(rows), strict=True)
    names = ("text", "second")
    objects = ({**vars(one), **dict(zip(names, texts, strict=False))} for texts, one in found)
    if json:
        result_json_list(objects)
        return
    first = list(islice(objects, 1))  # an error before it leaves no header alone
    if not jsonl:
        result("\t".join(["label", "probability", *names[: 2 if handle.takes_pairs else 1]]))
    for each in chain(first, objects):
        if jsonl:
            result(json_text(each, ensure_ascii=False))
        else:
            texts = [each[name].replace("\t", " ") for name in names if name in each]
            result("\t".join([each["label"], f"{each['probability']:.4f}", *texts]))


def _rows(
    handle: Classifier, file: str, text_column: str | None, second_column: str | None
) -> Iterator[Texts]:
    """The texts of a file: its lines, or columns of a table."""
    from elman.tasks.classification.reading import Columns, has_column, read_rows
    from elman.text.sources import expand

    name = Path(file).name.removesuffix(".gz").removesuffix(".zst")
    if file == "-" or not (text_column or second_column or name.endswith(TABLES)):
        for line in noted(read_lines(file)):
            yield tuple(line.split("\t")) if handle.takes_pairs else (line,)
        return
    data = handle.run.config.data
    columns = Columns("", text_column or "")
    if handle.takes_pairs:
        columns = Columns("", text_column or data.text_column, second_column or data.second_column)
    for path in expand([Path(file)]):
        if columns == Columns() and has_column(path, data.text_column):
            columns = Columns("", data.text_column)
        yield from (texts for texts, _ in read_rows(path, columns, labels_needed=False))
