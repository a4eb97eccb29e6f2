"""Notice texts that are given twice, or both for training and for measuring.

Files are the same if their paths resolve to one file, or if their bytes are equal. Only files of
equal size and with an equal beginning are read whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path

from elman.base.files import explained
from elman.base.origins import origin
from elman.text.sources import expand

HEAD = 1 << 16
"""Bytes at the beginning of a file that are compared first."""
MOST_NAMED = 3
"""Files that a note names."""
TOO_GOOD = (
    "a training text: its figures are too good",
    "training texts, so the figures are too good",
)
LEAST_SHARE = 0.05
"""Fewer rows that are both learnt from and measured are usual, and not noted."""


def repeated_texts(train: Sequence[str], valid: Sequence[str], test: Sequence[str]) -> list[str]:
    """Return notes on the repetitions among the files of a run, one for each kind."""
    named = {"training": train, "validation": valid, "test": test}
    counts = {kind: _counted_files(names) for kind, names in named.items()}
    same = _same_content([*dict.fromkeys(chain.from_iterable(counts.values()))])
    notes = []
    if again := [file for file, count in counts["training"].items() if count > 1]:
        notes.append(f"named more than once, and read once: {_listed(again)}")
    first: dict[Path, Path] = {}
    for file in counts["training"]:
        first.setdefault(same[file], file)
    copies = [file for file in counts["training"] if first[same[file]] != file]
    if len(copies) == 1:
        other = first[same[copies[0]]]
        notes.append(f"{origin(other)} and {origin(copies[0])} have the same content")
    elif copies:
        number = f"{len(copies):,} of {len(counts['training']):,} training texts"
        notes.append(f"{number} have the content of another one: {_listed(copies)}")
    of_training = set(first)
    for kind in ("validation", "test"):
        shared = [file for file in counts[kind] if same[file] in of_training]
        notes += _also(kind, shared, len(counts[kind]), *TOO_GOOD)
    of_validation = {same[file] for file in counts["validation"]} - of_training
    shared = [file for file in counts["test"] if same[file] in of_validation]
    notes += _also("test", shared, len(counts["test"]), "the validation text", "validation texts")
    return notes


def learnt_texts(train: Iterable[Sequence[str]], measured: Sequence[str]) -> list[str]:
    """Return a note if files to measure are among the training files of runs."""
    known = set(chain.from_iterable(train))
    found = [file for file in expand(measured) if str(file.resolve()) in known]
    if not found:
        return []
    are = "is training text" if len(found) == 1 else "are training texts"
    return [f"{_listed(found)} {are} of the model: the figures are too good"]


def repeated_rows(
    train: Iterable[Hashable], held_out: Mapping[str, Sequence[Hashable]], what: str
) -> list[str]:
    """Return notes on rows held out, by kind, that are also among those to learn from."""
    known, notes = set(chain.from_iterable(held_out.values())).intersection(train), []
    for kind, rows in held_out.items():
        count = sum(row in known for row in rows)
        if count > LEAST_SHARE * len(rows):
            total = f"{count:,} of {len(rows):,} {kind} {what}"
            notes.append(f"{total} are also among those to learn from")
    return notes


def _also(kind: str, files: Sequence[Path], total: int, one: str, many: str) -> list[str]:
    """A note that measuring texts of a `kind` are also among others."""
    if not files:
        return []
    if total == 1:
        return [f"the {kind} text {origin(files[0])} is also {one}"]
    are = "is" if len(files) == 1 else "are"
    return [f"{len(files):,} of {total:,} {kind} texts {are} also {many}: {_listed(files)}"]


def _listed(files: Sequence[Path]) -> str:
    names = ", ".join(origin(file) for file in files[:MOST_NAMED])
    return names if len(files) <= MOST_NAMED else f"{names} and {len(files) - MOST_NAMED:,} more"


def _counted_files(names: Sequence[str]) -> dict[Path, int]:
    """The files that are named, and by how many of the names."""
    files: dict[Path, Path] = {}
    counts: dict[Path, int] = {}
    for name in names:
        for file in expand(name):
            file = files.setdefault(file.resolve(), file)
            counts[file] = counts.get(file, 0) + 1
    return counts


def _same_content(files: Sequence[Path]) -> dict[Path, Path]:
    """Map each file to the first one with the same content."""
    one: dict[Path, Path] = {}
    for file in files:
        one.setdefault(file.resolve(), file)
    first = {file: file for file in one.values()}
    for group in _alike(first, _size_of):
        for some in _alike(group, _head_of):
            for equal in _alike(some, _hash_of):
                first.update(dict.fromkeys(equal, equal[0]))
    return {file: first[one[file.resolve()]] for file in files}


def _alike(files: Iterable[Path], key: Callable[[Path], Hashable]) -> list[list[Path]]:
    """Groups of several files with the same key."""
    groups: dict[Hashable, list[Path]] = {}
    for file in files:
        groups.setdefault(key(file), []).append(file)
    return [group for group in groups.values() if len(group) > 1]


def _size_of(path: Path) -> int:
    with explained(path):
        return path.stat().st_size


def _head_of(path: Path) -> bytes:
    with explained(path), path.open("rb") as file:
        return file.read(HEAD)


def _hash_of(path: Path) -> bytes:
    with explained(path), path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").digest()
