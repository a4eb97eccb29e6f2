"""Texts in tables (JSON lines, Parquet, CSV, TSV) and in Python: one text per row, in a column of
strings.

Rows are read one after the other, in constant memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from elman.base.documents import intact
from elman.base.errors import ElmanError, UsageError, in_words, nearest
from elman.text.tables import Table, json_objects, suffix_of

TEXT = "text"
"""The name of the column if none is given."""
TABLES = (".jsonl", ".ndjson", ".parquet")
SHEETS = (".csv", ".tsv")
"""Tables with a header, or plain text: see `is_table`."""
LONGEST_ROW = 1 << 28
"""Limit on the bytes of a row: it may be a book."""
_BATCH = 1024


def is_table(path: Path, column: str = TEXT) -> bool:
    """Whether a file is a table with a column of texts.

    A .csv or .tsv file is one if its header has a column `text`, or if another column is named. It
    is read as plain text otherwise: what follows such a suffix may be anything.
    """
    if suffix_of(path) not in SHEETS:
        return suffix_of(path) in TABLES
    if column != TEXT:
        return True
    try:
        return TEXT in Table(path).names
    except ElmanError:  # no header
        return False


def plain_sheets(names: Iterable[str]) -> list[str]:
    """A note for each .csv and .tsv file that is read as plain text, header and all."""
    sheets = [name for name in names if suffix_of(Path(name)) in SHEETS]
    return [f"{name} is read as plain text: --column NAME reads a table" for name in sheets]


def texts_in(path: Path, column: str = TEXT) -> Iterator[str]:
    """Yield the texts of a table; a null is left out."""
    if suffix_of(path) == ".parquet":
        return _in_parquet(path, column)
    if suffix_of(path) in SHEETS:
        table = Table(path)
        if column not in table.names:
            raise no_column(str(path), column, table.names)
        return (row[column] for _, row in table if row[column])
    rows = json_objects(path, LONGEST_ROW)
    return _texts(((f"{path}, line {number}", row) for number, row in rows), column)


def texts_of(rows: Iterable[Any], column: str = TEXT) -> Iterator[str]:
    """Yield texts given in Python: strings, or rows with a column of them."""
    return _texts(((f"text {number}", row) for number, row in enumerate(rows, start=1)), column)


def pieces(texts: Iterable[str]) -> Iterator[bytes]:
    """Encode texts, each with an end to its last line."""
    for number, text in enumerate(texts, start=1):
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise ElmanError(
                f"text {number} has half a character (a lone surrogate)", "encode it as UTF-8"
            ) from error
        yield data if data.endswith(b"\n") or not data else data + b"\n"


def _texts(rows: Iterable[tuple[str, Any]], column: str) -> Iterator[str]:
    for where, row in rows:
        if isinstance(row, Mapping):
            if column not in row:
                raise no_column(where, column, list(map(str, row)))
            value = row[column]
        else:
            value = row
        if value is None:
            continue
        if not isinstance(value, str):
            what = f"{column!r}" if isinstance(row, Mapping) else "it"
            raise UsageError(
                f"{where}: {what} is {in_words(type(value))}, not a text",
                "name a column of strings with --column, in Python with column",
            )
        yield value


def _in_parquet(path: Path, column: str) -> Iterator[str]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ElmanError(
            f"reading {path} needs the pyarrow package", "pip install 'elman[data]'"
        ) from error
    number = 0
    with intact(path, hint="restore it from a copy"), parquet.ParquetFile(path) as file:
        names = file.schema_arrow.names
        if column not in names:
            raise no_column(str(path), column, names)
        for batch in file.iter_batches(_BATCH, columns=[column]):
            values = batch.column(0).to_pylist()
            rows = ((f"{path}, row {number + i + 1}", {column: v}) for i, v in enumerate(values))
            yield from _texts(rows, column)
            number += len(values)


def no_column(where: str, column: str, names: list[str]) -> UsageError:
    hint = nearest(column, names) if names else "it has no columns"
    return UsageError(f"{where} has no column '{column}'", f"{hint}; name it with --column")
