"""Parallel text: two files in which line n of one corresponds to line n of the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from elman.base.errors import ElmanError, UsageError
from elman.text.sources import Paths, expand, file_lines, listed


def pair_of_files(paths: Paths) -> tuple[Path, Path]:
    """Return the source and the target file: two paths, or the name of a built-in corpus of two
    files."""
    files = expand(paths)
    if len(files) == 1 and len(listed(paths)) == 2:
        raise UsageError("source and target are the same file", "give SOURCE TARGET")
    if len(files) != 2:
        hint = "give SOURCE TARGET, for example train.en train.de"
        if len(files) == 1 and next(file_lines(files[0])).count("\t") == 1:
            name = files[0].name
            hint = f"divide it: cut -f1 {name} > SOURCE; cut -f2 {name} > TARGET"
        raise UsageError(
            f"parallel text needs two files, source and target, not {len(files)}", hint
        )
    return files[0], files[1]


def check_same_length(source: Path, target: Path, num_source: int, num_target: int) -> None:
    """Raise an error if the two files have different numbers of lines."""
    if num_source != num_target:
        raise ElmanError(
            f"{source} has {num_source:,} lines and {target} has {num_target:,}: "
            "line n of one must be the translation of line n of the other",
            "look for an extra or missing line (often a blank one) in one of them",
        )


def lines_of(path: Path) -> Iterator[str]:
    """Yield the lines of a file without line ends, in constant memory."""
    return (line.removesuffix("\n") for line in file_lines(path))
