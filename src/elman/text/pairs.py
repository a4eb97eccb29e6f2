"""Parallel text: two files of which line n of one belongs to line n of the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from elman.base.errors import ElmanError, UsageError
from elman.text.sources import Paths, expand, iter_blocks


def pair_of_files(paths: Paths) -> tuple[Path, Path]:
    """The source file and the target file that `paths` stand for: two files, or the name of a
    built-in corpus of two."""
    files = expand(paths)
    if len(files) != 2:
        raise UsageError(
            f"parallel text is two files, source and target, not {len(files)}",
            "write SOURCE TARGET, for example train.en train.de",
        )
    return files[0], files[1]


def check_same_length(source: Path, target: Path, num_source: int, num_target: int) -> None:
    """Refuse files of different numbers of lines: their lines cannot belong together."""
    if num_source != num_target:
        raise ElmanError(
            f"{source} has {num_source:,} lines and {target} has {num_target:,}: "
            "line n of one must be the translation of line n of the other",
            "find where the two part ways (a blank line too many, say), or name other files",
        )


def lines_of(path: Path) -> Iterator[str]:
    """The lines of a file, without their ends; nothing of it is kept."""
    rest = ""
    for block in iter_blocks(path):
        *lines, rest = (rest + block).split("\n")
        yield from lines
    if rest:
        yield rest
