"""Text files, read in blocks so that memory does not grow with their size.

`expand` turns what a user names (files, folders, patterns, built-in corpora) into paths.
`byte_blocks` reads one file as blocks of bytes that end where lines end; `corpus_blocks` does so
for many files in a row. `Block.text` decodes a block strictly, and an error names the file and the
line.

Text means UTF-8, plain or compressed with gzip (`.gz`) or Zstandard (`.zst`). A byte order mark at
the beginning is dropped and `\\r\\n` becomes `\\n`, so that a text means the same wherever it was
written; nothing else is changed.
"""

from __future__ import annotations

import glob
import gzip
import io
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from elman.base.errors import ElmanError, UsageError, nearest
from elman.base.files import explain
from elman.text.corpora import CORPORA, materialise

Paths = str | Path | Iterable[str | Path]

BLOCK_SIZE = 1 << 22
"""Bytes in a block, unless told otherwise. A line longer than a block is cut."""

BOM = b"\xef\xbb\xbf"
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")

# Where a line too long for a block may be cut: before a single space between two words. No
# tokenizer here sees across such a place, so the tokens are those of the whole line.
_WORD_END = re.compile(rb"\S(?= \S)")
_CUT_WINDOW = 1 << 16


@dataclass(frozen=True)
class Block:
    """A piece of a file, ending at the end of a line unless the line is longer than a block."""

    path: Path
    first_line: int
    """The number, from 1, of the line in which the block begins."""
    data: bytes
    position: int
    """How many bytes of the file on disk, compressed as they may be, have been read."""

    @property
    def text(self) -> str:
        """The block decoded; an error names the file and the line that is not UTF-8 text."""
        if self.first_line == 1 and self.data.startswith(UTF16_MARKS):
            raise ElmanError(
                f"{self.path} is UTF-16, not UTF-8",
                "convert it: iconv -f utf-16 -t utf-8 OLD > NEW",
            )
        if (nul := self.data.find(b"\0")) >= 0:
            raise ElmanError(
                f"{self.path} is not a text file: line {self._line(nul)} holds a NUL byte",
                "name a text file in UTF-8; compressed ones must end in .gz or .zst",
            )
        try:
            return self.data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ElmanError(
                f"{self.path}, line {self._line(error.start)}: "
                f"byte 0x{self.data[error.start]:02x} is not UTF-8 ({error.reason})",
                "convert the file, for example: iconv -f latin1 -t utf-8 OLD > NEW; "
                "`elman data check FILE` lists every such line",
            ) from error

    def _line(self, offset: int) -> int:
        return self.first_line + self.data.count(b"\n", 0, offset)


def listed(paths: Paths) -> list[str]:
    """One path or many, as a list of names."""
    return [str(paths)] if isinstance(paths, (str, Path)) else [str(path) for path in paths]


def expand(paths: Paths) -> list[Path]:
    """The files that `paths` stand for, each once, in the order given.

    A path may be a file, a folder (its files, hidden and empty ones left out, in alphabetical
    order), a pattern such as `news/*.txt.gz`, or the name of a built-in corpus, which is written
    to the cache first.
    """
    listed = [paths] if isinstance(paths, (str, Path)) else list(paths)
    if not listed:
        raise UsageError("no text was given", "name a text file or a built-in corpus")
    found: dict[Path, Path] = {}
    for path in listed:
        for file in _expand_one(path):
            found.setdefault(file.resolve(), file)
    return list(found.values())


def byte_blocks(path: Path, size: int = BLOCK_SIZE) -> Iterator[Block]:
    """Read a file as blocks of about `size` bytes, whatever they hold."""
    with opened(path) as (stream, raw):
        line, carried, beginning = 1, b"", True
        while True:
            chunk = read_bytes(stream, size, path)
            if beginning:
                chunk, beginning = chunk.removeprefix(BOM), False
            data = carried + chunk
            cut = _cut(data) if chunk else len(data)
            if cut:
                block = data[:cut]
                if b"\r" in block:  # a quick look spares most texts a slow search
                    block = block.replace(b"\r\n", b"\n")
                yield Block(path, line, block, raw.tell())
                line += block.count(b"\n")
            if not chunk:
                return
            carried = data[cut:]


def corpus_blocks(
    files: Iterable[Path], size: int = BLOCK_SIZE, *, end_lines: bool = False
) -> Iterator[Block]:
    """Read files one after the other as one text.

    The last line of a file and the first of the next are kept apart: a line end that is missing
    there is added. With `end_lines` it is added at the very end too, for tokenizers that mark line
    ends.
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


def iter_blocks(path: Path, size: int = BLOCK_SIZE) -> Iterator[str]:
    """Read a file as blocks of text that end at line ends; a line longer than a block is cut."""
    return (block.text for block in byte_blocks(path, size))


def sample(
    files: Iterable[Path], limit: int, *, block_size: int = 1 << 18
) -> tuple[list[Block], int]:
    """Blocks spaced evenly over the files, at most about `limit` bytes, and all bytes there are.

    Every k-th block is kept; when too many are, every second one is dropped and k doubles, so the
    length of the text need not be known beforehand (compressed files do not tell theirs).
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


def _expand_one(path: str | Path) -> list[Path]:
    file = Path(path).expanduser()
    if file.is_dir():
        inside = sorted(p for p in file.rglob("*") if p.is_file() and not _hidden(p, file))
        if full := [p for p in inside if p.stat().st_size]:
            return full
        raise UsageError(f"the folder {path} holds no text files", "name a folder with text in it")
    if file.exists():
        if not file.is_file():
            raise UsageError(f"{path} is not a regular file", "save the text to a file first")
        if not file.stat().st_size:
            raise ElmanError(f"{path} is empty", "name a file with some text in it")
        return [file]
    if str(path) in CORPORA:
        return materialise(str(path))
    if glob.has_magic(str(path)):
        if matches := sorted(glob.glob(str(file), recursive=True)):
            return [f for match in matches for f in _expand_one(match)]
        raise UsageError(f"no file matches {path}", "check the pattern")
    raise UsageError(*_missing(path, file))


def _hidden(path: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(root).parts)


def _missing(path: str | Path, file: Path) -> tuple[str, str]:
    """The sentence and the hint for a path that leads nowhere."""
    if file.suffix or file.parent != Path():
        beside = [p.name for p in file.parent.iterdir()] if file.parent.is_dir() else []
        hint = nearest(file.name, beside) if beside else ""
        close = hint if hint.startswith("did you mean") else "check the spelling of the path"
        return f"{path} does not exist", close
    names = [*CORPORA, *(p.name for p in Path().iterdir())]
    hint = nearest(str(path), names)
    known = f"built-in corpora: {', '.join(CORPORA)}"
    return (
        f"there is no file and no built-in corpus called '{path}'",
        hint if hint.startswith("did you mean") else known,
    )


@contextmanager
def opened(path: Path) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """The uncompressed bytes of a file, and the file itself, whose position tells the progress."""
    try:
        raw = path.open("rb")
    except OSError as error:
        raise explain(error, path) from error
    with raw:
        if path.suffix.lower() == ".gz":
            with gzip.GzipFile(fileobj=raw) as unzipped:
                yield io.BufferedReader(unzipped), raw
        elif path.suffix.lower() == ".zst":
            yield _unzstd(raw, path), raw
        else:
            yield raw, raw


def _unzstd(raw: BinaryIO, path: Path) -> BinaryIO:
    try:
        import zstandard
    except ImportError as error:
        raise ElmanError(
            f"reading {path} needs the zstandard package", "pip install 'elman[zstd]'"
        ) from error
    reader = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
    return io.BufferedReader(reader)


def read_bytes(stream: BinaryIO, size: int, path: Path) -> bytes:
    """Up to `size` bytes; fewer only at the end. Damage in a compressed file becomes a sentence."""
    try:
        return stream.read(size)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ElmanError(f"{path} is damaged: {error}", "restore it from a copy") from error
    except OSError as error:
        raise explain(error, path) from error
    except Exception as error:
        if type(error).__name__ != "ZstdError":  # its package is an extra: the class may not exist
            raise
        raise ElmanError(f"{path} is damaged: {error}", "restore it from a copy") from error


def _cut(data: bytes) -> int:
    """Where a block ends: after a line, else between two words, else between two characters."""
    if end := data.rfind(b"\n") + 1:
        return end
    start = max(0, len(data) - _CUT_WINDOW)
    ends = [match.end() for match in _WORD_END.finditer(data, start)]
    if ends:
        return ends[-1]
    cut = len(data)
    while cut > max(1, len(data) - 4) and 0x80 <= data[cut - 1] < 0xC0:
        cut -= 1  # continuation bytes
    if data[cut - 1] >= 0xC0 or data[cut - 1] == 0x0D:
        cut -= 1  # a lead byte whose character may go on, or the first half of a line end
    elif cut < len(data):
        cut = len(data)  # stray continuation bytes: whoever decodes them says so
    return cut


def _ended(block: Block) -> Block:
    if block.data.endswith(b"\n"):
        return block
    return Block(block.path, block.first_line, block.data + b"\n", block.position)
