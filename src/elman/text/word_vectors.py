"""Read word vectors: GloVe's text format, word2vec's text and binary formats, also .gz and .zst;
write word2vec's text format.

GloVe has a word and its numbers per line. word2vec begins with a line that gives the number of
words and the vector size; in the binary form each word is followed by a space and its numbers as
little-endian float32. The format is detected from the beginning of the file. No word of these
formats contains white space, so tokens are written as `written_word` spells them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from elman.base.counting import counted
from elman.base.documents import intact
from elman.base.errors import ElmanError
from elman.base.files import replacing
from elman.text.sources import file_lines, open_bytes, read_bytes

_HEADER = re.compile(rb"\s*(\d{1,18})[ \t]+(\d{1,18})[ \t]*\r?\n")
_BEGINNING = 1 << 16
_LONGEST_WORD = 1 << 16
MOST_NUMBERS = 1 << 20
"""Limit on the size of a vector."""
SPACE = "\u2581"
"""Written for a space within a token, as SentencePiece does."""
HINT = "give a GloVe text file, or a word2vec text or binary file"

Vectors = tuple[list[str], NDArray[np.float32]]
"""Words, and their vectors (V, D) in the same order."""


def written_word(token: str) -> str:
    """Spell a token without white space: a space as SPACE, other white space and control
    characters as their bytes, <0x0A>."""
    return "".join(map(_written, token))


def _written(character: str) -> str:
    if character == " ":
        return SPACE
    if not (character.isspace() or character < " " or character == "\x7f"):
        return character
    return "".join(f"<0x{byte:02X}>" for byte in character.encode())


def write_word_vectors(
    path: Path, words: Sequence[str], vectors: Iterable[NDArray[np.float32]]
) -> int:
    """Write words and their vectors, in word2vec's text format; return the number of words.

    Tokens without a spelling, and later ones with the same spelling, are left out: a file of word
    vectors cannot have them. Numbers have nine digits, which give back the same float32.
    """
    rows: dict[str, int] = {}
    for row, word in enumerate(map(written_word, words)):
        if word:
            rows.setdefault(word, row)
    names = {row: word for word, row in rows.items()}
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        for row, vector in enumerate(vectors):
            if not row:
                file.write(f"{len(rows)} {len(vector)}\n")
                numbers = " %.9g" * len(vector) + "\n"
            if row in names:
                file.write(names[row] + numbers % tuple(vector.tolist()))
    return len(rows)


def read_word_vectors(
    path: Path, max_words: int = 0, wanted: Collection[str] | None = None
) -> Vectors:
    """Read the words of a file and their vectors, at most `max_words` of them unless that is 0.

    If a word occurs twice, its first vector is used. Only words in `wanted` are kept, if given.
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
        size = None
        for word, vector in rows:
            size = len(vector)
            if wanted is None or word in wanted:
                words.setdefault(word, vector)
        if size is None:
            raise ElmanError(f"{path} has no words", HINT)
        return list(words), np.array(list(words.values()), np.float32).reshape(len(words), size)


def vectors_of(path: Path, tokens: Sequence[str]) -> tuple[list[int], NDArray[np.float32]]:
    """Read the vectors of `tokens`, as `write_word_vectors` spells them, or else in lower case.

    Return the indices of the tokens that have one, and the vectors in the same order.
    """
    spelled = [written_word(token) for token in tokens]
    wanted = {word for token in spelled for word in (token, token.lower())}
    words, vectors = read_word_vectors(path, wanted=wanted)
    places = {word: place for place, word in enumerate(words)}
    found = [places.get(word, places.get(word.lower(), -1)) for word in spelled]
    kept = [index for index, place in enumerate(found) if place >= 0]
    return kept, vectors[[found[index] for index in kept]]


def vector_size(path: Path) -> int:
    """The size of the vectors in a file."""
    return int(read_word_vectors(path, max_words=1)[1].shape[1])


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
                raise ElmanError(
                    f"{path}, line 1: vectors of {size} numbers for {expected} words",
                    "is it a file of word vectors, as word2vec or GloVe write them?",
                )
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
