"""Files in the cache folder for texts from elsewhere: stdin, other encodings, tables, addresses.

Training reads a text several times, so it is written to the cache, under the hash of its content:
the same text is found again, by a resumed run too. An index finds what a source that has not
changed became, without reading it again. What each copy was made of is noted beside it
(`base/origins.py`).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from elman.base.cache import cache_folder
from elman.base.errors import ElmanError
from elman.base.files import owned_folder, write_text
from elman.base.origins import note_origin


def kept(
    pieces: Iterable[bytes], name: str, what: str, source: Sequence[object] | None = None
) -> Path:
    """Write bytes to a file called `name`, and return its path; `what` they are is for messages.

    `source` identifies the content without reading it; None: nothing does.
    """
    texts = cache_folder() / "texts"
    index = None
    if source is not None:
        digest = hashlib.sha256(json.dumps([name, *map(str, source)]).encode()).hexdigest()
        index = texts / "index" / digest[:16]
        if index.is_file() and (known := texts / index.read_text(encoding="utf-8")).is_file():
            note_origin(known, what)
            return known
    texts.mkdir(exist_ok=True)
    with owned_folder(texts) as folder:
        path, hashed, size = folder / name, hashlib.sha256(), 0
        with path.open("wb") as file:
            for piece in pieces:
                hashed.update(piece)
                size += file.write(piece)
        if not size:
            raise ElmanError(f"{what} is empty", "give some text")
        found = texts / hashed.hexdigest()[:16] / name
        found.parent.mkdir(exist_ok=True)
        path.replace(found)
    if index is not None:
        write_text(index, found.relative_to(texts).as_posix())
    note_origin(found, what)
    return found


def kept_folder(files: Mapping[Path, Path], name: str, what: str) -> Path:
    """Return a folder called `name` with kept files at the relative paths of `files`."""
    texts = cache_folder() / "texts"
    parts = sorted((relative.as_posix(), str(path)) for relative, path in files.items())
    found = texts / hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16] / name
    if found.is_dir():
        note_origin(found, what)
        return found
    with owned_folder(texts) as folder:
        for relative, path in files.items():
            made = folder / name / relative
            made.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(path, made)
            except OSError:  # a file system without hard links
                shutil.copyfile(path, made)
        found.parent.mkdir(exist_ok=True)
        try:
            (folder / name).rename(found)
        except OSError:
            if not found.is_dir():  # no other process has made it meanwhile
                raise
    note_origin(found, what)
    return found


def identity(files: Iterable[Path]) -> list[object]:
    """What identifies the content of local files: paths, sizes, times of change."""
    found: list[object] = []
    for file in files:
        state = file.stat()
        found += [file.resolve(), state.st_size, state.st_mtime_ns]
    return found
