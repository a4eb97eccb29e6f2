"""What `elman score` and `elman pairs` share: sentences from a table, and the models that read
them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from elman.base.errors import ElmanError, UsageError
from elman.terminal.console import reading_notes, talk_notes, unknown_note
from elman.terminal.options import option
from elman.terminal.stdin import read_lines
from elman.text.tables import Row, Table

if TYPE_CHECKING:
    from elman.evaluate.predictors import Item, Reader

Column = Annotated[
    str | None, option("NAME", "FILE is a table (CSV or TSV): the column of sentences.")
]
Regions = Annotated[
    str | None, option("A,B,...", "The columns of a table that are a sentence's regions.")
]
Separator = Annotated[str | None, option("MARK", "The mark between the regions of a sentence.")]
With = Annotated[
    list[str] | None, option("MODEL", "Another model beside it; may be repeated.", "--with")
]


def in_utf8(file: str, encoding: str | None) -> str:
    """The file, or its copy in UTF-8 if it has another encoding."""
    if encoding is None:
        return file
    from elman.text.converting import utf8_files

    names = utf8_files([file], encoding)
    if len(names) > 1:
        raise UsageError(f"{file} is more than one file", "give one file with --encoding")
    return names[0]


def check_separator(separator: str | None) -> None:
    if separator == "":
        raise UsageError("--separator cannot be empty", "name a mark, such as --separator '|'")


@contextmanager
def opened(file: str) -> Iterator[Table]:
    """A table from a file, or from stdin if `file` is `-`."""
    from elman.base.files import owned_folder
    from elman.text.sources import expand

    if file != "-":
        files = expand(file)
        if len(files) > 1:
            raise UsageError(f"{file} is more than one file", "give one table")
        yield Table(files[0])
        return
    with owned_folder() as folder:
        path = folder / "stdin"
        with path.open("w", encoding="utf-8") as kept:
            kept.writelines(f"{line}\n" for line in read_lines("-"))
        if not path.stat().st_size:
            raise ElmanError("stdin is empty", "name a table with a header and rows")
        yield Table(path)


def no_sentences(file: str) -> ElmanError:
    return ElmanError(f"{file} has no sentences", "give some, below the header of a table")


def regions_of(
    table: Table, column: str | None, regions: str | None, separator: str | None
) -> Callable[[Row], list[tuple[str, str]]]:
    """A function from a row to the names and texts of its sentence's regions."""
    if regions is not None:
        if column is not None or separator is not None:
            raise UsageError(
                "--regions names the columns of a sentence's parts", "drop --column and --separator"
            )
        names = [name.strip() for name in regions.split(",")]
        table.check(names)
        return lambda row: [(name, _plain(row[name])) for name in names]
    if column is None:
        raise UsageError("a table needs --column or --regions", f"choose of {_listed(table)}")
    table.check([column])
    if separator is None:
        return lambda row: [("", _plain(row[column]))]
    return lambda row: [
        (str(number), _plain(text))
        for number, text in enumerate(row[column].split(separator), start=1)
    ]


def _plain(text: str) -> str:
    """Without the white space around it, and in one line."""
    return " ".join(text.split("\n")).strip()


def _listed(table: Table) -> str:
    return ", ".join(table.names)


def open_readers(
    models: Sequence[str],
    file: str,
    items: Callable[[], Iterable[Item]],
    *,
    device: str,
    as_is: bool,
    label: str | None = None,
) -> list[Reader]:
    """Open the models, fit them to the sentences of `file`, and say how much each does not know."""
    from elman.api import LM, load
    from elman.evaluate.predictors import Reader
    from elman.tokens.fitting import SAMPLE_LINES, count_unknown

    if not any(True for _ in items()):
        raise no_sentences(file)
    readers = []
    suffixes = _suffixes(models)
    opened_models = [load(name, device=device, kind=LM, label=label) for name in models]
    for name, lm, suffix in zip(models, opened_models, suffixes, strict=True):
        texts = [item.text for item in islice(items(), SAMPLE_LINES)]
        tokenizer = lm.tokenizer if as_is else lm.fitted(texts)
        notes = [*reading_notes(tokenizer.reads_as), *lm.notes]
        if tokenizer.unknown_id is not None:
            counts = count_unknown(tokenizer, (item.text for item in items()))
            notes.insert(0, unknown_note(*counts))
        talk_notes(f"{name}: {note}" if len(models) > 1 else note for note in notes)
        readers.append(Reader(lm.model, tokenizer, suffix))
    return readers


def _suffixes(models: Sequence[str]) -> list[str]:
    """Endings of the columns of several models: their names, as R and Python can write them."""
    if len(models) == 1:
        return [""]
    names = [re.sub(r"\W+", "_", Path(model).name).strip("_") for model in models]
    if len(set(names)) < len(names):
        names = [f"{name}_{number}" for number, name in enumerate(names, start=1)]
    return [f"_{name}" for name in names]
