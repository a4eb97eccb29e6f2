"""Encode texts to arrays of token ids on disk, memory-mapped and cached.

`encode_files` reads text in blocks, encodes the blocks in several processes and writes the ids to
the cache folder with a JSON header. The same text is encoded once per tokenizer: files that look
untouched (path, size, time) are found through an index, others by the hash of their content.
Entries are written atomically, so two programs may encode the same text at once, and are
spot-checked before use; a damaged entry is encoded again.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import zlib
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elman.base.cache import cache_folder
from elman.base.documents import intact, read_json, write_json
from elman.base.errors import ElmanError
from elman.base.files import explained, regular, replacing, sweep
from elman.text.parallel import BlockFunction, default_workers, map_blocks
from elman.text.sources import Paths, corpus_blocks, expand
from elman.tokens.tokenizer import Tokenizer

FORMAT = 1
BLOCK_SIZE = 1 << 20

_RELEASE_BYTES = 32 << 20
_HASHED_IDS = 4096
_COUNTED_AT_ONCE = 1 << 20


class EncodedText:
    """The ids of a text or a part of one, memory-mapped from disk."""

    def __init__(
        self,
        ids: NDArray[np.integer],
        *,
        num_bytes: int,
        entry: _Entry | None = None,
        start: tuple[int, int] = (0, 0),
    ) -> None:
        self.ids = ids
        """(tokens,) read-only."""
        self.num_bytes = num_bytes
        """Bytes of text that the ids stand for."""
        self._entry = entry
        self._start = start  # tokens and bytes of the entry before these
        self._touched = 0

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    @cached_property
    def content_hash(self) -> str:
        """Identifies the text: hash of the files' content or, for ids in memory, of both ends."""
        if self._entry is not None:
            return self._entry.content_hash
        ends = [self.ids[:_HASHED_IDS].tolist(), self.ids[-_HASHED_IDS:].tolist()]
        return _digest([len(self), *ends])

    def __len__(self) -> int:
        return len(self.ids)

    def slice(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return a copy of the ids from `start` up to `stop`, exclusive."""
        ids = self.ids[start:stop].astype(np.int64)
        self.touched(len(ids))
        return ids

    def touched(self, num_ids: int) -> None:
        """Note that `num_ids` ids were read, and release their pages from time to time.

        Otherwise everything ever read would stay resident until the machine runs short of memory.
        """
        self._touched += num_ids * self.ids.itemsize
        if self._touched > _RELEASE_BYTES and self._entry is not None:
            self._touched = 0
            if hasattr(mmap, "MADV_DONTNEED"):
                self._entry.mapping.madvise(mmap.MADV_DONTNEED)

    def counts(self, vocab_size: int) -> NDArray[np.int64]:
        """(V,) count each id."""
        counts_V = np.zeros(vocab_size, np.int64)
        for start in range(0, len(self), _COUNTED_AT_ONCE):
            part = self.slice(start, start + _COUNTED_AT_ONCE)
            counts_V += np.bincount(part, minlength=vocab_size)
        return counts_V

    def beginning(self, num_tokens: int | None) -> EncodedText:
        """The first tokens (None: all); their number of bytes is an estimate."""
        if num_tokens is None or num_tokens >= self.num_tokens:
            return self
        num_bytes = round(self.num_bytes * num_tokens / self.num_tokens)
        return EncodedText(self.ids[:num_tokens], num_bytes=num_bytes)

    def split(
        self, fraction: float, line_end: int | None = None
    ) -> tuple[EncodedText, EncodedText]:
        """Return the first `fraction` of the tokens and the rest, without copying.

        The cut falls between two characters, and between two lines if the tokenizer marks lines, or
        lines end with the token `line_end`, and a line ends in the rest.
        """
        wanted = min(max(int(len(self) * fraction), 0), len(self))
        tokens_before, bytes_before = self._start
        if wanted in (0, len(self)):
            position, num_bytes = wanted, self.num_bytes if wanted else 0
        elif self._entry is None:
            position, num_bytes = wanted, round(self.num_bytes * wanted / max(1, len(self)))
        else:
            position = self._entry.line_start(self.ids, wanted, line_end)
            end, end_bytes = self._entry.cut(tokens_before + position)
            position, num_bytes = end - tokens_before, end_bytes - bytes_before
        first = EncodedText(
            self.ids[:position], num_bytes=num_bytes, entry=self._entry, start=self._start
        )
        rest = EncodedText(
            self.ids[position:],
            num_bytes=self.num_bytes - num_bytes,
            entry=self._entry,
            start=(tokens_before + position, bytes_before + num_bytes),
        )
        return first, rest


@dataclass(frozen=True)
class _Entry:
    """Where an encoded text came from."""

    mapping: mmap.mmap
    files: list[Path]
    tokenizer: Tokenizer
    content_hash: str
    blocks: list[list[int]]
    """Tokens and bytes of each block of the text, in order."""

    def line_start(self, ids: NDArray[np.integer], wanted: int, line_end: int | None) -> int:
        """Return the first line start at or after `wanted`, or `wanted` if there is none."""
        if self.tokenizer.marks_lines:
            line_end = self.tokenizer.boundary_id
        if line_end is not None:
            for position in range(wanted, len(ids)):
                if ids[position - 1] == line_end:
                    return position
        return wanted

    def cut(self, position: int) -> tuple[int, int]:
        """Return the first position at or after `position` between two characters, and the bytes
        before it.

        Positions count the tokens of the whole text.
        """
        texts = corpus_blocks(self.files, BLOCK_SIZE, end_lines=self.tokenizer.marks_lines)
        tokens = num_bytes = index = 0
        while tokens + self.blocks[index][0] <= position:
            tokens, num_bytes = tokens + self.blocks[index][0], num_bytes + self.blocks[index][1]
            index += 1
        # Exact from here on, a few lines at a time: token spans take much memory.
        rest = next(islice(texts, index, None)).text
        while tokens < position:
            end = rest.find("\n", 1 << 14) + 1 or len(rest)
            piece, rest = rest[:end], rest[end:]
            piece_ids, spans = self.tokenizer.encode_spans(piece)
            if tokens + len(piece_ids) <= position:
                tokens, num_bytes = tokens + len(piece_ids), num_bytes + len(piece.encode())
                continue
            last = position - tokens - 1
            while last + 1 < len(spans) and spans[last + 1][0] < spans[last][1]:
                last += 1
            return tokens + last + 1, num_bytes + len(piece[: spans[last][1]].encode())
        return tokens, num_bytes


def encode_files(
    paths: Paths,
    tokenizer: Tokenizer,
    *,
    cache: Path | None = None,
    workers: int | None = None,
) -> EncodedText:
    """Return the ids of one or more files, from the cache if they were encoded before.

    `cache` is a folder (default: the user's cache folder), `workers` the number of processes
    (default: chosen from the size of the text and the machine).
    """
    files = expand(paths)
    folder = cache or cache_folder() / "encoded"
    for place in (folder, folder / "index"):
        sweep(place)  # what killed programs left
    signature = _signature(files)
    index = folder / "index" / f"{_digest([signature, tokenizer.hash])}.json"
    if (known := _read_index(index)) and (text := _open(folder / known, files, tokenizer)):
        return text
    content_hash = _content_hash(files)
    name = _digest([FORMAT, content_hash, tokenizer.hash])
    text = _open(folder / name, files, tokenizer)
    if text is None:
        header = _write_ids(folder / name, files, tokenizer, workers)
        if _signature(files) != signature:
            raise ElmanError(
                f"{files[0] if len(files) == 1 else 'a file'} changed while it was being read",
                "try again when no other program writes to it",
            )
        header |= {"content_hash": content_hash, "tokenizer_hash": tokenizer.hash}
        write_json(folder / f"{name}.json", header, seal=True)
        text = _open(folder / name, files, tokenizer)
        if text is None:
            raise ElmanError(f"{folder / name}.ids cannot be read back", "check the disk")
    # The index only saves time; a read-only cache works without it.
    with suppress(ElmanError, OSError):
        write_json(index, name)
    return text


def block_encoder(setup: bytes) -> BlockFunction:
    """Return a function that encodes a block of UTF-8 text, for a tokenizer given as JSON."""
    tokenizer = Tokenizer.from_json(setup.decode())
    dtype = _dtype(tokenizer)
    return lambda data: tokenizer.encode(data.decode()).astype(dtype).tobytes()


def _write_ids(
    entry: Path, files: list[Path], tokenizer: Tokenizer, workers: int | None
) -> dict[str, Any]:
    """Encode and write the ids; return the header, which marks the entry as complete."""
    dtype, ids_file = _dtype(tokenizer), entry.with_suffix(".ids")
    with explained(entry.parent):
        entry.parent.mkdir(parents=True, exist_ok=True)
    texts = corpus_blocks(files, BLOCK_SIZE, end_lines=tokenizer.marks_lines)
    results = map_blocks(
        f"{__name__}:{block_encoder.__name__}",
        tokenizer.to_json().encode(),
        texts,
        workers or default_workers(sum(file.stat().st_size for file in files)),
    )
    blocks = []
    with replacing(ids_file) as temporary, temporary.open("wb") as output:
        for block, ids in results:
            output.write(ids)
            blocks.append([len(ids) // dtype.itemsize, len(block.data)])
    num_tokens = sum(tokens for tokens, _ in blocks)
    if not num_tokens:
        raise ElmanError(f"{files[0]} has no text", "name a file with some text in it")
    return {
        "format": FORMAT,
        "dtype": dtype.name,
        "num_tokens": num_tokens,
        "num_bytes": sum(num_bytes for _, num_bytes in blocks),
        "fingerprint": _fingerprint(ids_file),
        "blocks": blocks,
    }


def _open(entry: Path, files: list[Path], tokenizer: Tokenizer) -> EncodedText | None:
    """Open a cache entry, or return None if it is absent or damaged."""
    ids_file = entry.with_suffix(".ids")
    with suppress(ElmanError), intact(ids_file):
        header = read_json(entry.with_suffix(".json"))
        dtype, blocks = np.dtype(header["dtype"]), header["blocks"]
        whole = (
            header["format"] == FORMAT
            and dtype == _dtype(tokenizer)
            and sum(tokens for tokens, _ in blocks) == header["num_tokens"]
            and sum(num_bytes for _, num_bytes in blocks) == header["num_bytes"]
            and header["tokenizer_hash"] == tokenizer.hash
            and ids_file.stat().st_size == header["num_tokens"] * dtype.itemsize
            and _fingerprint(ids_file) == header["fingerprint"]
        )
        if not whole:
            return None
        with ids_file.open("rb") as handle:
            mapping = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
        return EncodedText(
            np.frombuffer(mapping, dtype),
            num_bytes=header["num_bytes"],
            entry=_Entry(mapping, files, tokenizer, header["content_hash"], blocks),
        )
    return None


def _dtype(tokenizer: Tokenizer) -> np.dtype[Any]:
    return np.dtype(np.uint16 if tokenizer.vocab_size < 1 << 16 else np.int32)


def _fingerprint(path: Path) -> int:
    """Return a checksum of 64 parts spread over a file, or of all of it if it is small."""
    size = path.stat().st_size
    stretch = 1 << 20
    starts = range(0, size, stretch) if size <= 64 * stretch else range(0, size, size // 64)
    checksum = 0
    with regular(path).open("rb") as handle:
        for start in starts:
            handle.seek(start)
            checksum = zlib.crc32(handle.read(stretch), checksum)
        handle.seek(max(0, size - stretch))
        return zlib.crc32(handle.read(), checksum)


def _signature(files: list[Path]) -> list[list[Any]]:
    """Identify untouched files without reading them."""
    found: list[list[Any]] = []
    for file in files:
        with explained(file):
            stat = file.stat()
        found.append([str(file.resolve()), stat.st_size, stat.st_mtime_ns])
    return found


def _content_hash(files: list[Path]) -> str:
    digests = []
    for file in files:
        with explained(file), regular(file).open("rb") as handle:
            digests.append([file.suffix, hashlib.file_digest(handle, "sha256").hexdigest()])
    return _digest(digests)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:32]


def _read_index(path: Path) -> str | None:
    try:
        name = read_json(path)
    except ElmanError:
        return None
    return name if isinstance(name, str) and name.isalnum() else None
