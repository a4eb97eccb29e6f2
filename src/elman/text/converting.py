"""Text that is not a UTF-8 file: from stdin, or in another encoding.

It is written to the cache folder as UTF-8, since training reads a text several times, and under the
hash of its content, so that the same text is found again, by a resumed run too.
"""

from __future__ import annotations

import codecs
import hashlib
import sys
from collections.abc import Iterable, Iterator
from io import BufferedIOBase
from pathlib import Path
from typing import IO

from elman.base.cache import cache_folder
from elman.base.errors import ElmanError, UsageError, nearest
from elman.base.files import owned_folder
from elman.text.sources import expand, open_bytes, read_bytes

STDIN = "-"
PIECE = 1 << 20
USUAL = ("utf-8", "utf-16", "latin-1", "cp1252", "cp1251", "shift-jis", "gb18030", "big5", "euc-kr")


def check_encoding(name: str) -> str:
    """Return the encoding's usual name; refuse one that Python does not know."""
    try:
        info = codecs.lookup(name)
        if not info._is_text_encoding:
            raise LookupError
    except LookupError as error:
        raise UsageError(f"there is no text encoding '{name}'", nearest(name, USUAL)) from error
    return info.name


def utf8_files(names: Iterable[str], encoding: str | None = None) -> list[str]:
    """Return names of UTF-8 texts for `names`: `-` is stdin, files are in `encoding`."""
    found: list[str] = []
    encoding = None if encoding is None else check_encoding(encoding)
    for name in names:
        if name == STDIN:
            if STDIN in found:
                raise UsageError("stdin can be read only once", "write - once")
            if sys.stdin.isatty():
                sys.stderr.write("reading from the terminal: end with Ctrl-D\n")
            found.append(_kept(_pieces(sys.stdin.buffer, "stdin", encoding or "utf-8"), "stdin"))
        elif encoding is None or encoding == "utf-8":
            found.append(name)
        else:
            for path in expand(name):
                with open_bytes(path) as stream:
                    stem = path.name.removesuffix(".gz").removesuffix(".zst")
                    found.append(_kept(_pieces(stream, path, encoding), Path(stem).stem))
    return found


def _pieces(stream: IO[bytes] | BufferedIOBase, name: Path | str, encoding: str) -> Iterator[bytes]:
    """Decode a stream piece by piece, and encode it as UTF-8."""
    decoder = codecs.getincrementaldecoder(encoding)()
    size = 0
    while True:
        data = read_bytes(stream, PIECE, Path(name))  # type: ignore[arg-type]
        try:
            yield decoder.decode(data, final=not data).encode()
        except UnicodeError as error:
            place = size + getattr(error, "start", 0)
            raise ElmanError(
                f"{name} is not {encoding}: byte {place + 1:,} ({getattr(error, 'reason', error)})",
                "name its encoding with --encoding, such as latin-1 or cp1252",
            ) from error
        if not data:
            return
        size += len(data)


def _kept(pieces: Iterable[bytes], stem: str) -> str:
    """Write a text to the cache, and return its path."""
    texts = cache_folder() / "texts"
    texts.mkdir(exist_ok=True)
    with owned_folder(texts) as folder:
        path, hashed, size = folder / f"{stem}.txt", hashlib.sha256(), 0
        with path.open("wb") as file:
            for piece in pieces:
                hashed.update(piece)
                size += file.write(piece)
        if not size:
            raise ElmanError(f"{stem} is empty", "give some text")
        kept = texts / hashed.hexdigest()[:16] / path.name
        kept.parent.mkdir(exist_ok=True)
        path.replace(kept)
    return str(kept)
