"""Texts for commands that take files or `-`: strict UTF-8, in constant memory."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from tempfile import SpooledTemporaryFile
from typing import IO

from elman.base.errors import ElmanError, UsageError
from elman.terminal.console import talk, talk_notes
from elman.text.line_limit import longest_line, too_long

EMPTY = "there is no line to read"
KEPT_IN_MEMORY = 1 << 24
"""Bytes of stdin that are kept without a file."""


def in_columns(column: str | None, *texts: Iterable[str]) -> list[list[str]]:
    """Names of UTF-8 files for the names in `texts`; a table is the text in its `column`, and a
    note says which ones are read as plain text."""
    from elman.text.converting import STDIN, check_column, utf8_files
    from elman.text.records import TEXT, plain_sheets

    given = [list(names) for names in texts]
    every = list(chain(*given))
    if every.count(STDIN) > 1:
        raise UsageError("stdin can be read only once", "write - once")
    found = [utf8_files(names, column=column or TEXT) for names in given]
    check_column(column, every, chain(*found))
    talk_notes(plain_sheets(chain(*found)))
    return found


def read_stdin() -> str:
    """Read all of stdin, without the line end that `echo` adds; the limit is that of a line."""
    lines, left = [], longest_line()
    for line in read_lines("-"):
        lines.append(line)
        left -= len(line.encode()) + 1
        if left < -1:
            raise too_long("stdin", longest_line())
    return "\n".join(lines)


def read_lines(file: str, limit: int | None = None) -> Iterator[str]:
    """Yield the lines of a file, or of stdin if `file` is `-`, without their line ends.

    Refuse a line of more than `limit` bytes; None is the limit of `line_limit.py`.
    """
    if file == "-":
        return (line.removesuffix("\n").removesuffix("\r") for line in stdin_lines(limit))
    from elman.text.sources import expand, file_lines

    return (line.removesuffix("\n") for path in expand(file) for line in file_lines(path, limit))


class Lines:
    """The lines of `FILE` or `-`, as often as they are needed; those of stdin are kept on disk
    until the context is left."""

    def __init__(self, file: str, limit: int | None = None) -> None:
        self._file, self._limit = file, limit
        self._kept: IO[str] | None = None

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *error: object) -> None:
        if self._kept is not None:
            self._kept.close()

    def __iter__(self) -> Iterator[str]:
        if self._file != "-":
            yield from read_lines(self._file, self._limit)
            return
        if self._kept is None:
            self._kept = SpooledTemporaryFile(  # noqa: SIM115 - closed in __exit__
                KEPT_IN_MEMORY, "w+", encoding="utf-8", newline="\n"
            )
            self._kept.writelines(f"{line}\n" for line in read_lines("-", self._limit))
        self._kept.seek(0)
        yield from (line.removesuffix("\n") for line in self._kept)


def noted(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines of stdin; say so if there are none, as programs expect an empty result then."""
    lines = iter(lines)
    first = next(lines, None)
    if first is None:
        talk_notes([EMPTY])
        return
    yield first
    yield from lines


def stdin_lines(limit: int | None = None) -> Iterator[str]:
    """Yield the lines of stdin with their line ends, without a byte order mark."""
    from elman.text.sources import BOM, wide_encoding

    if sys.stdin.isatty():
        talk("reading from the terminal: end with Ctrl-D")
    limit = longest_line() if limit is None else limit
    number = 0
    while line := sys.stdin.buffer.readline(limit + len("\r\n")):
        number += 1
        if number == 1:
            line = line.removeprefix(BOM)
        if len(line.rstrip(b"\r\n")) > limit:
            raise too_long(f"stdin, line {number}", limit)
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            encoding = (wide_encoding(line) if number == 1 else None) or "latin1"
            raise ElmanError(
                f"stdin is not UTF-8: line {number}, byte {error.start + 1}",
                f"convert it first, for example with iconv -f {encoding} -t utf-8",
            ) from error
