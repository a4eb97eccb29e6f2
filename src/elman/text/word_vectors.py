"""Read word vectors: GloVe's text format, word2vec's text and binary formats, also .gz and .zst.

GloVe has a word and its numbers per line. word2vec begins with a line that gives the number of
words and the vector size; in the binary form each word is followed by a space and its numbers as
little-endian float32. The format is detected from the beginning of the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from elman.base.counting import counted
from elman.base.documents import intact
from elman.base.errors import ElmanError
from elman.text.sources import file_lines, open_bytes, read_bytes

_HEADER = re.compile(rb"\s*(\d{1,18})[ \t]+(\d{1,18})[ \t]*\r?\n")
_BEGINNING = 1 << 16
_LONGEST_WORD = 1 << 16
MOST_NUMBERS = 1 << 20
"""Limit on the size of a vector."""
HINT = "give a GloVe text file, or a word2vec text or binary file"

Vectors = tuple[list[str], NDArray[np.float32]]
"""Words, and their vectors (V, D) in the same order."""


def read_word_vectors(path: Path, max_words: int = 0) -> Vectors:
    """Read the words of a file and their vectors, at most `max_words` of them unless that is 0.

    If a word occurs twice, its first vector is used.
    """
    with intact(path, "is not a file of word vectors", HINT):
        with open_bytes(path) as stream:
            beginning = read_bytes(stream, _BEGINNING, path)
        if not beginning:
            raise ElmanError(f"{path} is empty", HINT)
        header = _HEADER.match(beginning)
        if header and int(header[2]) > MOST_NUMBERS:
            raise ElmanError(f"{path}, line 1: vectors of {int(header[2]):,} numbers", HINT)
        if header and _is_binary(beginning[header.end() :]):
            rows = _binary_rows(path, max_words)
        else:
            rows = _text_rows(path, header is not None, max_words)
        words: dict[str, NDArray[np.float32]] = {}
        for word, vector in rows:
            words.setdefault(word, vector)
        if not words:
            raise ElmanError(f"{path} has no words", HINT)
        return list(words), np.stack(list(words.values()))


def _is_binary(data: bytes) -> bool:
    if b"\0" in data:
        return True
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.start < len(data) - 4  # at the very end a character may just be cut off
    return False


def _text_rows(
    path: Path, has_header: bool, max_words: int
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    size, expected, found = 0, None, 0
    for number, line in enumerate(file_lines(path), start=1):
        line = line.rstrip("\r\n")
        if number == 1 and has_header:
            expected, size = map(int, line.split())
            if not size or not expected:
                raise ElmanError(f"{path}, line 1: vectors of {size} numbers for {expected} words")
            continue
        if max_words and found == max_words:
            return
        # Words may contain spaces (GloVe's Common Crawl file has some), so split from the right.
        size = size or len(line.split()) - 1
        parts = line.rstrip(" ").rsplit(" ", size)
        try:
            if not size or len(parts) != size + 1:
                raise ValueError(f"{len(line.split())} columns")
            vector = np.array(parts[1:], np.float32)
        except ValueError as error:
            raise ElmanError(
                f"{path}, line {number} is not a word and {size or 'some'} numbers ({error})", HINT
            ) from error
        yield parts[0], _finite(vector, f"{path}, line {number}")
        found += 1
    if expected is not None and not max_words and found < expected:
        raise _cut_short(path, found, expected)


def _binary_rows(path: Path, max_words: int) -> Iterator[tuple[str, NDArray[np.float32]]]:
    with open_bytes(path) as stream:
        data = read_bytes(stream, _BEGINNING, path)
        header = _HEADER.match(data)
        assert header is not None
        num_words, size = int(header[1]), int(header[2])
        position = header.end()
        for number in range(min(num_words, max_words or num_words)):
            # Slide a window over the file that always holds a whole word and its numbers.
            if len(data) - position < 4 * size + _LONGEST_WORD:
                more = read_bytes(stream, 4 * size + (1 << 22), path)
                data, position = data[position:] + more, 0
            space = data.find(b" ", position, position + _LONGEST_WORD)
            end = space + 1 + 4 * size
            if space < 0 or end > len(data):
                raise _cut_short(path, number, num_words)
            try:
                word = data[position:space].lstrip(b"\n").decode()
            except UnicodeDecodeError as error:
                raise ElmanError(
                    f"{path}, word {number + 1} is not UTF-8 ({error})", HINT
                ) from error
            vector = np.frombuffer(data, "<f4", size, space + 1).astype(np.float32)
            yield word, _finite(vector, f"{path}, word {number + 1} ('{word}')")
            position = end
        rest = data[position:] + read_bytes(stream, _BEGINNING, path)
        if rest.strip() and not 0 < max_words < num_words:
            raise ElmanError(
                f"{path} has more than the {counted(num_words, 'word')} that its header promises",
                "restore the file from a copy",
            )


def _finite(vector: NDArray[np.float32], where: str) -> NDArray[np.float32]:
    if not np.isfinite(vector).all():
        raise ElmanError(f"{where} has a value that is not finite", "restore the file from a copy")
    return vector


def _cut_short(path: Path, found: int, expected: int) -> ElmanError:
    return ElmanError(
        f"{path} is truncated: its header promises {expected:,} words, it has {found:,}",
        "restore the file from a copy",
    )
