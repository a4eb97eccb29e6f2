"""Lines for commands that take `FILE` or `-`: strict UTF-8, in constant memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from elman.base.errors import ElmanError
from elman.terminal.console import talk


def read_stdin() -> str:
    """Read all of stdin, without the line end that `echo` adds."""
    return "\n".join(read_lines("-"))


def read_lines(file: str) -> Iterator[str]:
    """Yield the lines of a file, or of stdin if `file` is `-`, without their line ends."""
    if file == "-":
        return (line.removesuffix("\n").removesuffix("\r") for line in stdin_lines())
    from elman.text.sources import expand, file_lines

    return (line.removesuffix("\n") for path in expand(file) for line in file_lines(path))


def stdin_lines() -> Iterator[str]:
    """Yield the lines of stdin with their line ends."""
    if sys.stdin.isatty():
        talk("reading from the terminal: end with Ctrl-D")
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ElmanError(
                f"stdin is not UTF-8: line {number}, byte {error.start + 1}",
                "convert it first, for example with iconv -f latin1 -t utf-8",
            ) from error
