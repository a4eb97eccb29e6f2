"""Read tables: comma-separated with quoting (.csv), tab-separated, or JSON lines.

`table_rows` yields rows as they are, for readers that find their columns themselves; `Table` has a
header and yields rows by name. Errors name the file and the line.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from elman.base.documents import parse_json
from elman.base.errors import ElmanError, UsageError, nearest
from elman.text.line_limit import longest_line, too_long
from elman.text.sources import file_lines

Cells = list[str] | dict[str, Any]
Row = dict[str, str]


def table_rows(path: Path) -> Iterator[tuple[int, Cells]]:
    """Yield the rows of a file that are not empty, each with its line number."""
    suffix = suffix_of(path)
    if suffix in (".jsonl", ".ndjson"):
        return json_objects(path)
    if suffix == ".csv":
        return _quoted(path, file_lines(path), _separator(path, ","))
    return (
        (number, line.rstrip("\r\n").split("\t"))
        for number, line in enumerate(file_lines(path), start=1)
        if line.strip()
    )


class Table:
    """A table with a header. It can be iterated again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.suffix = suffix_of(path)
        first = next(self._cells(), None)
        if first is None:
            raise ElmanError(f"{path} is empty", "name a table with a header and rows")
        self.names = [name.strip() for name in first[1]]
        repeated = [name for name in self.names if self.names.count(name) > 1]
        if repeated or not all(self.names):
            what = f"two columns '{repeated[0]}'" if repeated and repeated[0] else "a nameless one"
            raise ElmanError(
                f"the header of {path} has {what}",
                "give every column a name of its own; R: write.table(row.names = FALSE)",
            )

    def check(self, columns: Iterable[str]) -> None:
        """Raise an error for a column that the table does not have."""
        for column in columns:
            if column not in self.names:
                raise UsageError(
                    f"{self.path} has no column '{column}'", nearest(column, self.names)
                )

    def __iter__(self) -> Iterator[tuple[int, Row]]:
        """Yield rows by name, each with its line number."""
        cells = self._cells()
        if not self._has_objects:
            next(cells)
        for number, row in cells:
            if isinstance(row, dict):
                yield number, {name: _text(row.get(name)) for name in self.names}
                continue
            if len(row) != len(self.names):
                raise ElmanError(
                    f"{self.path}, line {number}: {len(row)} columns instead of "
                    f"{len(self.names)} as in the header",
                    "quote texts that contain the separator, and keep tabs out of texts",
                )
            yield number, dict(zip(self.names, row, strict=True))

    @property
    def _has_objects(self) -> bool:
        return self.suffix in (".jsonl", ".ndjson")

    def _cells(self) -> Iterator[tuple[int, Cells]]:
        if self._has_objects:
            return json_objects(self.path)
        mark = _separator(self.path, "," if self.suffix == ".csv" else "\t")
        # R quotes the cells of any table.
        if mark != "\t" or next(file_lines(self.path), "").startswith('"'):
            return _quoted(self.path, file_lines(self.path), mark)
        if not self._has_quoted_cells:
            return table_rows(self.path)
        return (
            (number, [_unquoted(cell) or "" for cell in cells])
            for number, cells in table_rows(self.path)
        )

    @cached_property
    def _has_quoted_cells(self) -> bool:
        """Whether a tab-separated table is that of a spreadsheet, which quotes cells with quotation
        marks or commas: then every cell with a quotation mark is quoted as a whole. Elsewhere the
        marks are part of a text."""
        found = False
        for line in file_lines(self.path):
            for cell in line.rstrip("\r\n").split("\t") if '"' in line else ():
                if '"' in cell:
                    if _unquoted(cell) is None:
                        return False
                    found = True
        return found


def _separator(path: Path, usual: str) -> str:
    """The usual separator, or another one that the first line has instead: spreadsheets of some
    countries write semicolons."""
    first = next(file_lines(path), "")
    if usual in first:
        return usual
    return max((usual, "\t", ",", ";"), key=first.count)


def _unquoted(cell: str) -> str | None:
    """The text of a cell, without quotes around it; None if it has other quotation marks."""
    if '"' not in cell:
        return cell
    inside = cell[1:-1]
    if len(cell) < 2 or cell[0] + cell[-1] != '""' or '"' in inside.replace('""', ""):
        return None
    return inside.replace('""', '"')


def suffix_of(path: Path) -> str:
    """The last suffix, without that of a compressed file."""
    return ([s for s in path.suffixes if s not in (".gz", ".zst")] or [""])[-1].lower()


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def json_objects(path: Path, limit: int | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of JSON lines with their line numbers; refuse lines beyond `limit`."""
    for number, line in enumerate(file_lines(path, limit), start=1):
        if not line.strip():
            continue
        hint = "give one object per line"
        found = parse_json(line, f"{path}, line {number}", "is not JSON", hint)
        if not isinstance(found, dict):
            raise ElmanError(f"{path}, line {number} is not an object", "give one object per line")
        yield number, found


def _quoted(path: Path, lines: Iterator[str], mark: str) -> Iterator[tuple[int, Cells]]:
    csv.field_size_limit(longest_line())
    reader = csv.reader(lines, delimiter=mark, strict=True)
    number = 1
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            if "field limit" in str(error):
                raise too_long(f"a field of {path}, line {number}", longest_line()) from error
            if "new-line character" in str(error):
                raise ElmanError(
                    f"{path} ends its lines with CR alone, as old Macs do",
                    "convert it: tr '\\r' '\\n' < OLD > NEW",
                ) from error
            unclosed = "unexpected end of data" in str(error)
            what = "a quotation mark is not closed" if unclosed else str(error)
            raise ElmanError(
                f"{path}, line {number}: {what}", "double the quotation marks inside a text"
            ) from error
        if cells is None:
            return
        if any(cell.strip() for cell in cells):
            yield number, cells
        number = reader.line_num + 1
