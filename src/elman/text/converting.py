"""Text that is not a UTF-8 file: from stdin, in another encoding, in a table, or in Python.

It is written to the cache folder as UTF-8 (`kept.py`).
"""

from __future__ import annotations

import codecs
import glob
import sys
from collections.abc import Iterable, Iterator, Mapping
from io import BufferedIOBase
from itertools import chain
from pathlib import Path
from typing import IO, Any

from elman.base.errors import ElmanError, UsageError, nearest
from elman.text.kept import identity, kept, kept_folder
from elman.text.records import SHEETS, TABLES, TEXT, is_table, pieces, texts_in, texts_of
from elman.text.remote import is_address
from elman.text.sources import (
    Paths,
    corpus_blocks,
    expand,
    is_path,
    listed,
    open_bytes,
    read_bytes,
    wide_encoding,
)
from elman.text.tables import suffix_of

Texts = Paths | Iterable[Mapping[str, Any]]
"""Files, or texts: see `named_texts`."""

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


def utf8_files(
    names: Iterable[str], encoding: str | None = None, *, column: str | None = None
) -> list[str]:
    """Return names of UTF-8 texts for `names`: `-` is stdin, files are in `encoding`.

    With `column`, a table is the text in its column of this name; without, it is left as it is. A
    folder or pattern with tables in it becomes one text.
    """
    encoding = None if encoding is None else check_encoding(encoding)
    names = list(names)
    if names.count(STDIN) > 1:
        raise UsageError("stdin can be read only once", "write - once")
    if STDIN in names and sys.stdin.isatty():
        sys.stderr.write("reading from the terminal: end with Ctrl-D\n")
    found = [one for name in names for one in _in_utf8(name, encoding)]
    if column is None:
        return found
    return [
        one
        for name in found
        for one in (_columns(name, column) if _may_hold_tables(name) else [name])
    ]


def check_column(column: str | None, before: Iterable[str], after: Iterable[str]) -> None:
    """Refuse a --column beside files of which none is a table: reading changed no name."""
    if column is not None and list(before) == list(after):
        raise UsageError(
            f"--column {column} has no effect: none of the files is a table",
            "drop it, or give .jsonl, .parquet, .csv or .tsv files",
        )


def _in_utf8(name: str, encoding: str | None) -> list[str]:
    if name == STDIN:
        stdin = _pieces(sys.stdin.buffer, "stdin", encoding or "utf-8")
        return [str(kept(stdin, "stdin.txt", "stdin"))]
    if encoding is None or encoding == "utf-8":
        return [name]
    files = expand(name)
    converted = [_converted(path, encoding) for path in files]
    folder = Path(name).expanduser()
    if not folder.is_dir():
        return [str(path) for path in converted]
    # It stays a folder: names of files in it may be labels.
    inside = [path.relative_to(folder).with_name(_unpacked(path)) for path in files]
    if len(set(inside)) < len(inside):
        raise UsageError(
            f"{name} has a file twice, compressed and plain", "remove one of them, or move it"
        )
    copies = dict(zip(inside, converted, strict=True))
    return [str(kept_folder(copies, folder.resolve().name, str(Path(name))))]


def _converted(path: Path, encoding: str) -> Path:
    if suffix_of(path) == ".parquet":  # says itself how its texts are encoded
        return path
    with open_bytes(path) as stream:
        return kept(_pieces(stream, path, encoding), _unpacked(path), str(path))


def named_texts(data: Texts, column: str | None = None) -> list[str]:
    """Return names of files for what Python was given as `data`.

    A str, a Path or a collection of them names files. Any other iterable gives texts, which are
    kept in a file: strings, or rows with a `column` of them, such as a dataset of Hugging Face.
    """
    if isinstance(data, Mapping):
        raise UsageError(
            f"the data is a {type(data).__name__} of {', '.join(map(str, data))}",
            "give one of them, such as data['train']",
        )
    if isinstance(data, (str, Path, bytes, bytearray)) or not isinstance(data, Iterable):
        return listed(data)
    rows: Iterator[Any] = iter(data)
    first = next(rows, None)
    whole = [] if first is None else chain([first], rows)
    is_text = isinstance(first, str) and not hasattr(data, "__len__") and not is_path(first)
    if not (is_text or isinstance(first, Mapping)):
        return listed(whole)
    texts = pieces(texts_of(whole, column or TEXT))
    return [str(kept(texts, "texts.txt", "data from Python"))]


def _may_hold_tables(name: str) -> bool:
    path = Path(name)
    if suffix_of(path) in (*TABLES, *SHEETS) or is_address(name):
        return True
    return path.is_dir() if is_path(name) else glob.has_magic(name)


def _columns(name: str, column: str) -> list[str]:
    """Convert the tables that a name names; return the name itself if there are none."""
    files = expand(name)
    if not any(is_table(file, column) for file in files):
        return [name]
    source = [column, *identity(files)]
    stem = Path(_unpacked(files[0])).stem if len(files) == 1 else Path(name.rstrip("/*")).name
    text = chain.from_iterable(_text_of(file, column) for file in files)
    return [str(kept(text, f"{stem or 'texts'}.txt", name, source))]


def _text_of(file: Path, column: str) -> Iterator[bytes]:
    if is_table(file, column):
        return pieces(texts_in(file, column))
    return (block.data for block in corpus_blocks([file], end_lines=True))


def _unpacked(path: Path) -> str:
    """The name of a file without the suffix of a compressed one; a table keeps its own."""
    return path.name.removesuffix(".gz").removesuffix(".zst")


def _pieces(stream: IO[bytes] | BufferedIOBase, name: Path | str, encoding: str) -> Iterator[bytes]:
    """Decode a stream piece by piece, and encode it as UTF-8."""
    decoder = codecs.getincrementaldecoder(encoding)()
    size = 0
    while True:
        data = read_bytes(stream, PIECE, Path(name))  # type: ignore[arg-type]
        begun = len(decoder.getstate()[0])  # bytes of a character that the last piece cut in two
        try:
            yield decoder.decode(data, final=not data).encode()
        except UnicodeError as error:
            place = size - begun + getattr(error, "start", 0)
            hint = "name its encoding with --encoding, such as latin-1 or cp1252"
            if encoding == "utf-16" and not place:  # no byte order mark
                found = wide_encoding(data)
                hint = f"write --encoding {found}" if found else "drop --encoding if it is UTF-8"
            raise ElmanError(
                f"{name} is not {encoding}: byte {place + 1:,} ({getattr(error, 'reason', error)})",
                hint,
            ) from error
        if not data:
            return
        size += len(data)
