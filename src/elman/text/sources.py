"""Read text files in blocks, so that memory does not grow with their size.

`expand` turns what a user names (files, folders, patterns, addresses, built-in corpora) into paths.
`byte_blocks` reads one file as blocks of bytes that end at line ends; `corpus_blocks` does so for
several files in a row. `Block.text` decodes a block strictly; its errors name the file and the
line.

Text means UTF-8, plain or compressed with gzip (`.gz`) or Zstandard (`.zst`). A byte order mark is
dropped and `\\r\\n` becomes `\\n`, so that a text means the same wherever it was written; nothing
else is changed.
"""

from __future__ import annotations

import glob
import gzip
import io
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from elman.base.documents import intact
from elman.base.errors import ElmanError, UsageError, closest
from elman.base.files import explained
from elman.text.corpora import CORPORA, materialise
from elman.text.line_limit import longest_line, too_long
from elman.text.remote import fetch, is_address
from elman.text.zstandard_frames import WholeFrames

Paths = str | Path | Iterable[str | Path]

BLOCK_SIZE = 1 << 22
"""Default size of a block in bytes. A line longer than a block is cut."""

SAVED_AS = {
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "save it as CSV in UTF-8, in the program it is of"),
    **dict.fromkeys((".docx", ".doc", ".odt", ".rtf"), "save it as plain text in UTF-8"),
    ".pdf": "save it as plain text in UTF-8, such as with pdftotext",
}
"""Hints for documents of other programs, by suffix."""
RUN_FILES = ("config.json", "metrics.jsonl")
"""A folder that has these is that of a run."""
HEAD = 1 << 12
"""Bytes at the beginning of a file in which UTF-16 is looked for."""
LONGEST_NAME = 1024
"""What is longer than this and no file is taken for a text."""

GZIP, ZSTANDARD = COMPRESSED = (".gz", ".zst")
"""Endings of the names of compressed files."""

BOM = b"\xef\xbb\xbf"
MARKS = {
    b"\xff\xfe\0\0": "utf-32",
    b"\0\0\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}
"""Encodings by the byte order mark at the beginning of a file, the longer ones first."""

# A line too long for a block is cut before a single space between two words. None of our
# tokenizers merges across such a place, so the tokens equal those of the whole line.
_WORD_END = re.compile(rb"\S(?= \S)")
_CUT_WINDOW = 1 << 16
_OUTSIDE_NAME = re.compile(r"[A-Za-z_][\w.]+:[A-Za-z_]\w*")  # package.module:NAME


@dataclass(frozen=True)
class Block:
    """A piece of a file, ending at the end of a line unless the line is longer than a block."""

    path: Path
    first_line: int
    """Number of the line in which the block begins, from 1; 0: see `start`."""
    data: bytes
    start: int = 0
    """Where it begins in the file, if its line was not counted."""

    @property
    def text(self) -> str:
        """Decode the block; an error names the file and the line that is not UTF-8."""
        if (nul := self.data.find(b"\0")) >= 0:
            check_wide(self.path)
            raise ElmanError(
                f"{self.path} is not a text file: line {self._line(nul)} holds a NUL byte",
                SAVED_AS.get(self.path.suffix.lower())
                or "name a text file in UTF-8; compressed ones must end in .gz or .zst",
            )
        try:
            return self.data.decode("utf-8")
        except UnicodeDecodeError as error:
            check_wide(self.path)
            raise ElmanError(
                f"{self.path}, line {self._line(error.start)}: "
                f"byte 0x{self.data[error.start]:02x} is not UTF-8 ({error.reason})",
                "name its encoding, such as --encoding cp1252 (train, score, pairs, evaluate, data "
                "check), or convert it: iconv -f cp1252 -t utf-8 OLD > NEW",
            ) from error

    def _line(self, offset: int) -> int:
        first = self.first_line
        if not first:
            with explained(self.path), self.path.open("rb") as file:
                left, first = self.start, 1
                while left and (chunk := file.read(min(left, BLOCK_SIZE))):
                    left -= len(chunk)
                    first += chunk.count(b"\n")
        return first + self.data.count(b"\n", 0, offset)


def wide_encoding(beginning: bytes) -> str | None:
    """Recognise UTF-16 and UTF-32 by the beginning of a text: by the byte order mark, or else by
    the NUL in every second byte of Latin letters. Return the name of the encoding."""
    for mark, name in MARKS.items():
        if beginning.startswith(mark):
            return name
    first, second = beginning[::2], beginning[1::2]
    for nuls, letters, name in ((second, first, "utf-16-le"), (first, second, "utf-16-be")):
        if nuls.count(0) > len(nuls) / 2 and 0 not in letters:
            return name
    return None


def check_wide(path: Path) -> None:
    """Refuse a file in UTF-16 or UTF-32."""
    with open_bytes(path) as stream:
        encoding = wide_encoding(read_bytes(stream, HEAD, path))
    if encoding is not None:
        raise ElmanError(
            f"{path} is {encoding.upper()}, not UTF-8",
            f"name its encoding, --encoding {encoding}, or convert it: "
            f"iconv -f {encoding} -t utf-8 OLD > NEW",
        )


def listed(paths: Paths) -> list[str]:
    one = isinstance(paths, (str, Path, bytes, bytearray)) or not isinstance(paths, Iterable)
    names: list[object] = [paths] if one else [*paths]  # type: ignore[misc]
    for name in names:
        if not isinstance(name, (str, Path)):
            raise UsageError(
                f"a path must be a str or a Path, not {type(name).__name__}",
                "name a text file or a built-in corpus",
            )
    return [str(name) for name in names]


def expand(paths: Paths) -> list[Path]:
    """Return the files that `paths` name, each once, in the order given.

    A path may be a file, a folder (its files in alphabetical order, without hidden and empty ones),
    a pattern such as `news/*.txt.gz`, an address such as `s3://bucket/news.txt`, or the name of a
    built-in corpus; the last two are written to the cache first.
    """
    names = listed(paths)
    if not names:
        raise UsageError("no text was given", "name a text file or a built-in corpus")
    found: dict[Path, Path] = {}
    for path in names:
        for file in _expand_one(path):
            found.setdefault(file.resolve(), file)
    return list(found.values())


def byte_blocks(path: Path, size: int = BLOCK_SIZE) -> Iterator[Block]:
    """Read a file as blocks of about `size` bytes, without decoding them."""
    with open_bytes(path) as stream:
        line, carried, beginning = 1, b"", True
        while True:
            chunk = read_bytes(stream, size, path)
            if beginning:
                chunk, beginning = chunk.removeprefix(BOM), False
            data = carried + chunk
            cut = _cut(data) if chunk else len(data)
            if cut:
                block = data[:cut]
                if b"\r" in block:  # a fast check that spares most texts the slow replacement
                    block = block.replace(b"\r\n", b"\n")
                yield Block(path, line, block)
                line += block.count(b"\n")
            if not chunk:
                return
            carried = data[cut:]


def corpus_blocks(
    files: Iterable[Path], size: int = BLOCK_SIZE, *, end_lines: bool = False
) -> Iterator[Block]:
    """Read several files in a row as one text.

    A missing line end between two files is added, so that their lines stay separate. With
    `end_lines` one is also added at the very end, for tokenizers that mark line ends.
    """
    waiting: Block | None = None
    for file in files:
        for block in byte_blocks(file, size):
            if waiting is not None:
                joined = waiting.path == block.path
                yield waiting if joined else _ended(waiting)
            waiting = block
    if waiting is not None:
        yield _ended(waiting) if end_lines else waiting


def corpus_readers(
    files: Iterable[Path], size: int = BLOCK_SIZE, size_in_order: int = BLOCK_SIZE
) -> Iterator[Callable[[], Block]]:
    """Like `corpus_blocks` with `end_lines`, but each block is read by calling its function, in any
    thread, where files allow that.

    Other files are read here, in blocks of `size_in_order`: longer words are cut.
    """
    for file in files:
        ends = _line_ends(file, size)
        if ends is None:
            for block in corpus_blocks([file], size_in_order, end_lines=True):
                yield partial(_itself, block)
        for start, end in pairwise(ends or ()):
            yield partial(_read_block, file, start, end)


def _itself(block: Block) -> Block:
    return block


def _line_ends(path: Path, size: int) -> list[int] | None:
    """Return 0, and places at line ends about `size` bytes apart up to the end of a file; None if
    it is compressed, a pipe, or has lines that are too long."""
    with explained(path):
        if path.suffix.lower() in COMPRESSED or not path.is_file():
            return None
        ends = [0]
        with path.open("rb", buffering=0) as file:
            total = file.seek(0, io.SEEK_END)
            while ends[-1] < total:
                at = ends[-1] + size
                if at >= total:
                    ends.append(total)
                    continue
                file.seek(at)
                found = file.read(_CUT_WINDOW).find(b"\n")
                if found < 0:
                    return None
                ends.append(at + found + 1)
    return ends


def _read_block(path: Path, start: int, end: int) -> Block:
    with explained(path), path.open("rb") as file:
        file.seek(start)
        data = file.read(end - start)
    if len(data) < end - start:
        raise ElmanError(f"{path} became shorter while it was read", "try again")
    if start == 0:
        data = data.removeprefix(BOM)
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n")
    block = Block(path, int(start == 0), data, start)
    return _ended(block) if data else block


def file_lines(path: Path, limit: int | None = None) -> Iterator[str]:
    """Yield the lines of a file with their line ends, in constant memory.

    Refuse a line of more than `limit` bytes; None is the limit of `line_limit.py`.
    """
    limit = longest_line() if limit is None else limit
    number, held, rest = 1, 0, list[str]()  # parts of an unfinished line, and their bytes
    for block in byte_blocks(path):
        *lines, last = block.text.split("\n")
        if lines:
            lines[0] = "".join([*rest, lines[0]])
            # A character has one to four bytes: most blocks need no exact count.
            if max(map(len, lines)) > limit // 4:
                for offset, line in enumerate(lines):
                    if len(line.encode()) > limit:
                        raise too_long(f"{path}, line {number + offset}", limit)
            yield from (f"{line}\n" for line in lines)
            number, held, rest = number + len(lines), 0, []
        held, rest = held + len(last.encode()), [*rest, last]
        if held > limit:
            raise too_long(f"{path}, line {number}", limit)
    if held:
        yield "".join(rest)


def sample(
    files: Iterable[Path], limit: int, *, block_size: int = 1 << 18
) -> tuple[list[Block], int]:
    """Return blocks spaced evenly over the files, about `limit` bytes at most, and the total bytes.

    Every k-th block is kept; when there are too many, every second one is dropped and k doubles, so
    the length of the text need not be known beforehand (compressed files do not record theirs).
    """
    kept: list[Block] = []
    num_bytes, every = 0, 1
    for index, block in enumerate(corpus_blocks(files, block_size)):
        num_bytes += len(block.data)
        if index % every == 0:
            kept.append(block)
        if sum(len(b.data) for b in kept) > limit and len(kept) > 1:
            kept, every = kept[::2], every * 2
    return kept, num_bytes


def is_path(name: str) -> bool:
    """Whether a file or folder of this name exists."""
    try:
        return Path(name).expanduser().exists()
    except (OSError, ValueError, RuntimeError):  # too long, a NUL, no such home
        return False


def _expand_one(path: str) -> list[Path]:
    if ("\n" in path or len(path) > LONGEST_NAME) and not is_path(path):
        raise UsageError(
            f"'{path[:20].strip()}...' is a text, not the name of a file",
            "save it to a file; in Python, give texts as an iterator: iter(texts)",
        )
    if is_address(path):
        return [file for copy in fetch(path) for file in _expand_one(str(copy))]
    file = Path(path).expanduser()
    if file.is_dir():
        if all((file / name).is_file() for name in RUN_FILES):
            raise UsageError(
                f"{path} is a run folder, not a text",
                "name a text; `elman train` goes on from a run with --from",
            )
        inside = sorted(p for p in file.rglob("*") if p.is_file() and not _hidden(p, file))
        if full := [p for p in inside if p.stat().st_size]:
            return full
        raise UsageError(f"the folder {path} has no text files", "name a folder with text in it")
    if file.exists():
        if not file.is_file():
            raise UsageError(f"{path} is not a regular file", "save the text to a file first")
        if not file.stat().st_size:
            raise ElmanError(f"{path} is empty", "name a file with some text in it")
        return [file]
    if path in CORPORA or _OUTSIDE_NAME.fullmatch(path):
        return materialise(path)
    if glob.has_magic(path):
        if matches := sorted(glob.glob(str(file), recursive=True)):
            return [f for match in matches for f in _expand_one(match)]
        raise UsageError(f"no file matches {path}", "check the pattern")
    raise UsageError(*_missing(path, file))


def _hidden(path: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(root).parts)


def _missing(path: str, file: Path) -> tuple[str, str]:
    """Return the message and the hint for a path that does not exist."""
    if path == "-":
        return "stdin cannot be read here", "write the text to a file, and name the file"
    if file.suffix or file.parent != Path():
        beside = list(file.parent.iterdir()) if file.parent.is_dir() else []
        # Without the suffixes, which would make any two of them look similar.
        beside.sort(key=lambda other: other.suffix == file.suffix)
        names = {other.stem: other.name for other in beside}
        found = names.get(closest(file.stem, names) or "")
        message, hint = f"{path} does not exist", "check the spelling of the path"
    else:
        found = closest(path, [*CORPORA, *(p.name for p in Path().iterdir())])
        message = f"there is no file and no built-in corpus called '{path}'"
        hint = f"built-in corpora: {', '.join(CORPORA)}"
    if found is None and " " in path:
        message = f"there is no file called '{path}'"
        hint = "a text itself is given on stdin: echo '...' | elman COMMAND, with - for the file"
    return message, hint if found is None else f"did you mean '{found}'?"


def open_bytes(path: Path) -> io.BufferedIOBase:
    """Open a file to read its bytes, uncompressed."""
    suffix = path.suffix.lower()
    if suffix != ZSTANDARD:
        with explained(path):
            return gzip.GzipFile(path) if suffix == GZIP else path.open("rb")
    try:
        import zstandard
    except ImportError as error:
        raise ElmanError(
            f"reading {path} needs the zstandard package", "pip install 'elman[zstd]'"
        ) from error
    with explained(path):
        frames: Any = WholeFrames(path.open("rb"))
    return io.BufferedReader(
        zstandard.ZstdDecompressor().stream_reader(frames, read_across_frames=True)
    )


def read_bytes(stream: io.BufferedIOBase, size: int, path: Path) -> bytes:
    """Read `size` bytes, fewer only at the end; a damaged file raises an error that names it."""
    with intact(path, hint="restore it from a copy"):
        return stream.read(size)


def _cut(data: bytes) -> int:
    """Return where to end a block: after a line, else between two words, else between two
    characters."""
    if end := data.rfind(b"\n") + 1:
        return end
    start = max(0, len(data) - _CUT_WINDOW)
    if ends := [match.end() for match in _WORD_END.finditer(data, start)]:
        return ends[-1]
    cut = len(data)
    while cut > max(1, len(data) - 4) and 0x80 <= data[cut - 1] < 0xC0:
        cut -= 1  # continuation bytes
    if data[cut - 1] >= 0xC0 or data[cut - 1] == 0x0D:
        return cut - 1  # a lead byte whose character may continue, or the first half of \r\n
    return len(data)  # continuation bytes without a lead byte fail when the block is decoded


def _ended(block: Block) -> Block:
    if block.data.endswith(b"\n"):
        return block
    return replace(block, data=block.data + b"\n")
