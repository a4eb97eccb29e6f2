"""Files in the cache folder for texts from elsewhere: stdin, other encodings, tables, addresses.

Training reads a text several times, so it is written to the cache, under the hash of its content:
the same text is found again, by a resumed run too. An index finds what a source that has not
changed became, without reading it again. What each copy was made of is noted beside it: settings
have the path of the copy, and users are shown the name that they gave.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from elman.base.cache import cache_folder
from elman.base.errors import ElmanError
from elman.base.files import owned_folder, replacing, write_text

_COPY = re.compile(r"(.*[\\/]texts)[\\/]([0-9a-f]{16})[\\/](.+)", re.DOTALL)
"""The path of a copy, in any cache folder."""


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
            _note_origin(known, what)
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
    _note_origin(found, what)
    return found


def kept_folder(files: Mapping[Path, Path], name: str, what: str) -> Path:
    """Return a folder called `name` with kept files at the relative paths of `files`."""
    texts = cache_folder() / "texts"
    parts = sorted((relative.as_posix(), str(path)) for relative, path in files.items())
    found = texts / hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16] / name
    if found.is_dir():
        _note_origin(found, what)
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
    _note_origin(found, what)
    return found


def origin(path: Path | str) -> str:
    """Return what a copy was made of, as the user named it; any other path as it is.

    If the copy is not there, its own name has to do.
    """
    found = _COPY.fullmatch(str(path))
    if found is None:
        return str(path)
    texts, digest, inside = found.groups()
    known = _origin(Path(texts), digest, inside)
    return known or (str(path) if Path(path).exists() else inside)


def shown(message: str) -> str:
    """Replace the paths of copies in a message by what the user named.

    The path of a copy that is not there stays: it is what a run lacks, not the user's file.
    """
    if not _COPY.search(message):
        return message
    texts = cache_folder() / "texts"
    parts = re.split(rf"({re.escape(str(texts))}[\\/]([0-9a-f]{{16}})[\\/])", message)
    found = parts[0]
    for folder, digest, rest in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        found += _origin(texts, digest, rest) or folder + rest
    return found


def _note_origin(copy: Path, what: str) -> None:
    place = copy.parents[1] / "origins" / copy.parent.name / copy.name
    what = origin(what)  # of a copy of a copy: the column of a table in another encoding
    if not (place.is_file() and place.read_text(encoding="utf-8") == what):
        with replacing(place, durable=False) as temporary:
            temporary.write_text(what, encoding="utf-8")


def _origin(texts: Path, digest: str, text: str) -> str | None:
    """Replace the name of a copy, with which `text` begins; None: it begins with none."""
    folder = texts / "origins" / digest
    names = sorted(os.listdir(folder), key=len, reverse=True) if folder.is_dir() else []
    for name in names:
        if text.startswith(name) and (texts / digest / name).exists():
            return (folder / name).read_text(encoding="utf-8") + text[len(name) :]
    return None


def identity(files: Iterable[Path]) -> list[object]:
    """What identifies the content of local files: paths, sizes, times of change."""
    found: list[object] = []
    for file in files:
        state = file.stat()
        found += [file.resolve(), state.st_size, state.st_mtime_ns]
    return found
