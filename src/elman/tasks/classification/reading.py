"""Labelled texts, or pairs of texts: tables, JSON lines, folders of files named for labels.

    .tsv and other tables    columns between tabs, without quoting
    .csv                     columns between commas, with quoting
    .jsonl                   one object per line
    a folder                 a file for each label, named for it, with one text per line

Unless they are given, the columns of labels and texts are detected: by their names in a header, or
by their content (labels repeat, texts hardly ever do). A header with other names is recognised by
its label, which no row has. Errors name the file and the line.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from statistics import median

from elman.base.errors import ElmanError, UsageError, nearest
from elman.text.sources import COMPRESSED, expand, file_lines
from elman.text.tables import Cells, suffix_of, table_rows

LABEL_NAMES = (
    *("label", "labels", "class", "category", "target", "sentiment", "language", "gold"),
    *("rating", "ratings", "stars", "score", "polarity", "emotion", "topic", "y"),
)
TEXT_NAMES = (
    *("text", "sentence", "message", "review", "document", "content", "name", "title"),
    *("texts", "comment", "body", "tweet", "utterance", "review_text", "reviewtext"),
)
Texts = tuple[str, ...]
"""The text of a row, or the two texts of a pair."""
_NAME = re.compile(r"[^\W\d][\w.-]*(?: [\w.-]+){0,2}")
"""What a column may be called: up to three words."""
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")
_MOST_SINGLES = 0.1
"""Share of rows whose label is theirs alone, above which a label of the first row's own says
nothing."""
_LOOK_AHEAD = 1000
"""Rows from which columns are detected."""


@dataclass(frozen=True)
class Columns:
    """The columns of labels and texts: names in the header, keys of objects, or numbers from 1."""

    label: str = ""
    text: str = ""
    second: str = ""
    """That of the second text of a pair; empty for single texts."""

    def __post_init__(self) -> None:
        named = Counter(filter(None, (self.label, self.text, self.second)))
        for name, count in named.items():
            if count > 1:
                raise UsageError(
                    f"column {name} is named twice", "name different columns for labels and texts"
                )


def read_labelled(
    paths: Sequence[str], columns: Columns, left_out: list[Texts] | None = None
) -> list[tuple[Texts, str]]:
    """Read the texts of files and folders, each file once, and their labels; rows with an empty
    text are `left_out`."""
    rows: list[tuple[Texts, str]] = []
    seen: set[Path] = set()
    for path in paths:
        is_folder = Path(path).expanduser().is_dir()
        if is_folder and columns.second:
            raise UsageError(
                f"{path} is a folder with a file for each label, without pairs of texts",
                "give pairs as a table: .tsv, .csv or .jsonl",
            )
        for file in expand([path]):
            if file.resolve() in seen:
                continue
            seen.add(file.resolve())
            if is_folder:
                label = file.name.split(".")[0]
                rows += [((line.strip(),), label) for line in file_lines(file) if line.strip()]
            else:
                for texts, found in read_rows(file, columns, labels_needed=True):
                    if found and all(map(str.strip, texts)):
                        rows.append((texts, found))
                    elif left_out is not None:
                        left_out.append(texts)
    if not rows:
        raise ElmanError(f"no texts in {', '.join(paths)}", "check the files")
    return rows


def read_rows(
    path: Path, columns: Columns, *, labels_needed: bool
) -> Iterator[tuple[Texts, str | None]]:
    """Read texts and labels from a table or a file of JSON lines; without `labels_needed`, labels
    may be missing."""
    rows = _rows(path)
    beginning = list(islice(rows, _LOOK_AHEAD))
    if not beginning:
        return
    found, has_header = _found(path, [cells for _, cells in beginning], columns)
    if labels_needed and not found.label:
        first = [cells for _, cells in beginning]
        raise UsageError(
            f"{path} has no column of labels",
            _other_form(path, first) or "name it with --column, or add one before the text",
        )
    body = islice(chain(beginning, rows), int(has_header), None)
    names = list(beginning[0][1]) if has_header else None
    for number, cells in body:
        where = f"{path}, line {number}"
        label = _cell(cells, found.label, names, where).strip() if found.label else None
        if labels_needed and not label:
            raise ElmanError(f"{where}: the label is missing", "no label may be empty")
        texts = [column for column in (found.text, found.second) if column]
        yield tuple(_cell(cells, column, names, where) for column in texts), label or None


def _other_form(path: Path, rows: Sequence[Cells]) -> str | None:
    """Say how to convert a table of which every line is one cell; None if nothing divides them."""
    first = str(rows[0][0]).lstrip() if isinstance(rows[0], list) else ""
    if suffix_of(path) == ".json" and first[:1] in ("[", "{"):
        if first[0] == "[":
            return "write one object per line: jq -c '.[]' OLD > NEW.jsonl"
        return f"rename it to {path.name.replace('.json', '.jsonl')}"
    if not all(isinstance(row, list) and len(row) == 1 for row in rows):
        return None
    lines = [row[0] for row in rows if isinstance(row, list)]
    if all(line.startswith("__label__") and " " in line for line in lines):
        return r"for fastText's form: sed 's/ /\t/' OLD > NEW.tsv"
    mark = next((mark for mark in ",;|" if all(mark in line for line in lines)), None)
    if mark is None:
        return None
    is_csv = suffix_of(path) == ".csv"
    separators = "commas, semicolons or tabs" if is_csv else "tabs"
    told = f"columns are separated by {separators}; "
    if mark == "|":
        return told + r"replace '|': tr '|' '\t' < OLD > NEW.tsv"
    packed = path.suffix if path.suffix in COMPRESSED else ""
    return f"{told}for '{mark}', rename it to {path.name.split('.')[0]}.csv{packed}"


def _rows(path: Path) -> Iterator[tuple[int, Cells]]:
    if suffix_of(path) == ".parquet":
        raise UsageError(
            f"a classifier does not read .parquet files, such as {path}",
            "convert it: pandas.read_parquet(OLD).to_csv('NEW.csv', index=False)",
        )
    return table_rows(path)


def has_column(path: Path, name: str) -> bool:
    """Whether the header of a table has a column of this name."""
    _, first = next(_rows(path), (0, []))
    return not name.isdigit() and name in first


def find_columns(path: Path, columns: Columns) -> Columns:
    """The columns of labels and texts of a file, as given or detected."""
    beginning = [cells for _, cells in islice(_rows(path), _LOOK_AHEAD)]
    return _found(path, beginning, columns)[0] if beginning else columns


def _found(path: Path, rows: Sequence[Cells], columns: Columns) -> tuple[Columns, bool]:
    """The columns, and whether the first row is a header."""
    first = rows[0]
    if isinstance(first, dict):
        names = list(first)
        label = columns.label or _named(names, LABEL_NAMES, columns.text, columns.second)
        others = [name for name in names if name not in (label, columns.second)]
        text = columns.text or _named(others, TEXT_NAMES) or _longest(path, rows, others)
        return replace(columns, label=label, text=text), False
    lowered = [cell.strip().lower() for cell in first]
    given = {c for c in vars(columns).values() if c and not c.isdigit()}
    if missing := sorted(given - set(first)):
        raise UsageError(f"{path} has no column called '{missing[0]}'", nearest(missing[0], first))
    if given or (
        any(name in LABEL_NAMES for name in lowered) and any(name in TEXT_NAMES for name in lowered)
    ):
        label = columns.label or _named(first, LABEL_NAMES, columns.text, columns.second)
        text = columns.text or _named(first, TEXT_NAMES, label, columns.second)
        if not text:
            objects = [dict(zip(first, row, strict=False)) for row in rows[1:]]
            others = [name for name in first if name not in (label, columns.second)]
            text = _longest(path, objects, others)
        return replace(columns, label=label, text=text), True
    lists = [row for row in rows if isinstance(row, list)]
    by_number = any(vars(columns).values())
    found = _by_content(path, lists[1:] if len(lists) > 1 else lists, columns)
    if by_number or not _is_header(path, lists, found):
        return _by_content(path, lists, columns), False
    called = {key: first[int(n) - 1] if n else "" for key, n in vars(found).items()}
    return Columns(**called), True


def _is_header(path: Path, rows: Sequence[list[str]], columns: Columns) -> bool:
    """Whether the first row, without known names, is a header; an error if it cannot be told."""
    first, others = rows[0], rows[1:]
    text, label = int(columns.text) - 1, int(columns.label or 0) - 1
    if label < 0 or max(text, label) >= len(first) or len(set(first)) < len(first):
        return False
    if not all(_NAME.fullmatch(cell.strip()) for cell in first):
        return False
    labels = Counter(row[label].strip() for row in others if label < len(row))
    if first[label].strip() in labels or not labels:
        return False
    if all(map(_NUMBER.fullmatch, labels)):
        return True
    lowered = {cell.strip().lower() for cell in first}
    singles = sum(number for number in labels.values() if number == 1)
    if singles > _MOST_SINGLES * labels.total():
        return bool(lowered & {*LABEL_NAMES, *TEXT_NAMES}) and labels.total() > len(labels)
    lengths = [len(row[text]) for row in others if text < len(row)]
    if lowered & {*LABEL_NAMES, *TEXT_NAMES} or median(lengths) > 2 * len(first[text]):
        return True
    raise UsageError(
        f"line 1 of {path} may be a header or a row: no other row has the label "
        f"'{first[label].strip()}'",
        "name the columns with --column and --text-column; their numbers mean that it is a row",
    )


def _by_content(path: Path, rows: Sequence[list[str]], columns: Columns) -> Columns:
    """Detect columns: texts are the longest, labels have the fewest different values."""
    width = Counter(len(row) for row in rows).most_common(1)[0][0]
    values = {str(i + 1): [row[i] for row in rows if i < len(row)] for i in range(width)}
    others = [number for number in values if number not in (columns.label, columns.second)]
    if not columns.text and not others:
        hint = "a line is a label and a text, separated by a tab (in .csv, by a comma)"
        raise UsageError(f"{path} has no column of texts", _other_form(path, rows) or hint)
    text = columns.text or max(others, key=lambda number: sum(map(len, values[number])))
    others = [number for number in values if number not in (text, columns.second)]
    label = columns.label or min(others, key=lambda n: len(set(values[n])), default="")
    return replace(columns, label=label, text=text)


def _named(names: Iterable[str], known: Sequence[str], *others: str) -> str:
    """The first of `known` that is among `names`, except `others`."""
    by_lower = {name.strip().lower(): name for name in names if name not in others}
    return next((by_lower[name] for name in known if name in by_lower), "")


def _longest(path: Path, rows: Sequence[Cells], names: Sequence[str]) -> str:
    totals = dict.fromkeys(names, 0)
    for row in rows:
        for name, value in row.items() if isinstance(row, dict) else ():
            if name in totals and isinstance(value, str):
                totals[name] += len(value)
    if not any(totals.values()):
        raise UsageError(f"{path} has no column of texts", "name it with --text-column")
    return max(totals, key=totals.__getitem__)


def _cell(cells: Cells, column: str, names: list[str] | None, where: str) -> str:
    if isinstance(cells, dict):
        if column not in cells:
            raise ElmanError(f"{where}: no '{column}'", nearest(column, cells))
        value = "" if cells[column] is None else cells[column]
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    index = names.index(column) if names is not None and column in names else int(column) - 1
    if names is not None and len(cells) != len(names):
        raise ElmanError(
            f"{where}: {len(cells)} columns instead of {len(names)} as in the header",
            "remove tabs from texts; in .csv, quote texts that contain a comma",
        )
    if not 0 <= index < len(cells):
        raise ElmanError(
            f"{where}: no column {index + 1}, only {len(cells)}",
            "every line is a label and a text, separated by a tab (in .csv, by a comma)",
        )
    return cells[index]
