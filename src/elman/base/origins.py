"""Record which source each copy in the cache folder was made from.

A text from stdin, in another encoding or in a column of a table is read from a copy
(`text/kept.py`). Settings have the path of the copy; users are shown the name that they gave, in
tables and in every error.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from elman.base.cache import cache_folder
from elman.base.files import replacing

_COPY = re.compile(r"(.*[\\/]texts)[\\/]([0-9a-f]{16})[\\/](.+)", re.DOTALL)
"""The path of a copy, in any cache folder."""
_INSIDE = re.compile(r"[\\/]texts[\\/][0-9a-f]{16}[\\/]")
"""The part of such a path that shows in a message, which may be long."""


def note_origin(copy: Path, what: str) -> None:
    """Note that `copy` was made of `what`."""
    place = copy.parents[1] / "origins" / copy.parent.name / copy.name
    what = origin(what)  # of a copy of a copy: the column of a table in another encoding
    if not (place.is_file() and place.read_text(encoding="utf-8") == what):
        with replacing(place, durable=False) as temporary:
            temporary.write_text(what, encoding="utf-8")


def origin(path: Path | str) -> str:
    """Return what a copy was made of, as the user named it; any other path as it is.

    If the copy is not there, return its own name.
    """
    found = _COPY.fullmatch(str(path))
    if found is None:
        return str(path)
    texts, digest, inside = found.groups()
    known = _origin(Path(texts), digest, inside)
    return known or (str(path) if Path(path).exists() else inside)


def with_origins(message: str) -> str:
    """Replace the paths of copies in a message by what the user named.

    The path of a copy that is not there stays: it is what a run lacks, not the user's file.
    """
    if not _INSIDE.search(message):
        return message
    texts = cache_folder() / "texts"
    parts = re.split(rf"({re.escape(str(texts))}[\\/]([0-9a-f]{{16}})[\\/])", message)
    found = parts[0]
    with suppress(OSError):  # a note that cannot be read must not hide the error
        for folder, digest, rest in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
            found += _origin(texts, digest, rest) or folder + rest
        return found
    return message


def _origin(texts: Path, digest: str, text: str) -> str | None:
    """Replace the name of a copy, with which `text` begins; None: it begins with none."""
    folder = texts / "origins" / digest
    names = sorted(os.listdir(folder), key=len, reverse=True) if folder.is_dir() else []
    for name in names:
        if text.startswith(name) and (texts / digest / name).exists():
            return (folder / name).read_text(encoding="utf-8") + text[len(name) :]
    return None
