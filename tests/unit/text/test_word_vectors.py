"""Files of word vectors, whole and broken."""

from __future__ import annotations

import gzip
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elman.base.errors import ElmanError
from elman.text.word_vectors import (
    read_word_vectors,
    vectors_of,
    write_word_vectors,
    written_word,
)

WORDS = ["the", "Straße", "of", ". . ."]
VECTORS = np.array([[1, 2, 3], [-0.5, 0, 0.25], [4, 5, 6], [7, 8, 9]], np.float32)
LINES = [f"{w} {' '.join(map(str, v))}" for w, v in zip(WORDS, VECTORS.tolist(), strict=True)]
GLOVE = "\n".join(LINES) + "\n"


def binary(ends: bytes = b"\n") -> bytes:
    rows = (w.encode() + b" " + v.tobytes() for w, v in zip(WORDS[:3], VECTORS, strict=False))
    return b"3 3\n" + b"".join(row + ends for row in rows)


FILES = {
    "glove.txt": GLOVE.encode(),
    "crlf.txt": GLOVE.replace("\n", "\r\n").encode(),
    "glove.txt.gz": gzip.compress(GLOVE.encode()),
    "word2vec.txt": f"4 3\n{GLOVE}".encode(),
    "spaced.vec": ("4 3\n" + GLOVE.replace("\n", " \n")).encode(),
    "no-last-line-end.txt": GLOVE.rstrip("\n").encode(),
    "binary.bin": binary(),
    "gensim.bin": binary(b""),
    "binary.bin.gz": gzip.compress(binary()),
}


@pytest.mark.parametrize("name", FILES)
def test_every_format_gives_the_same(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(FILES[name])
    words, vectors_VD = read_word_vectors(tmp_path / name)
    expected = WORDS[:3] if "bin" in name else WORDS
    assert words == expected
    assert vectors_VD.dtype == np.float32
    np.testing.assert_array_equal(vectors_VD, VECTORS[: len(expected)])
    assert read_word_vectors(tmp_path / name, max_words=2)[0] == WORDS[:2]


def test_the_first_of_two_vectors_counts(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("a 1 2\nb 3 4\na 5 6\n")
    words, vectors_VD = read_word_vectors(tmp_path / "x.txt")
    assert words == ["a", "b"]
    assert vectors_VD.tolist() == [[1, 2], [3, 4]]


def test_a_file_larger_than_the_window(tmp_path: Path) -> None:
    vectors_VD = np.random.default_rng(1).random((3000, 50), np.float32)
    rows = (f"word{i} ".encode() + v.tobytes() for i, v in enumerate(vectors_VD))
    (tmp_path / "big.bin").write_bytes(b"3000 50\n" + b"\n".join(rows))
    words, found = read_word_vectors(tmp_path / "big.bin")
    assert words[-1] == "word2999"
    np.testing.assert_array_equal(found, vectors_VD)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "empty"),
        (b"a 1 2\nb 3\n", "line 2 is not a word and 2 numbers"),
        (b"a 1 2\nb 3 x\n", "line 2 is not a word and 2 numbers"),
        (b"a 1 2\n\nb 3 4\n", "line 2"),
        (b"a 1 2\nb 3 nan\n", "line 2 has a value that is not finite"),
        (b"just\nwords\n", "line 1 is not a word and some numbers"),
        (b"a 1 2\nb\xff 3 4\n", "line 2: byte 0xff is not UTF-8"),
        (b"5 2\na 1 2\nb 3 4\n", "promises 5 words, it has 2"),
        (b"0 3\n", "line 1"),
        (binary()[:-9], "promises 3 words, it has 2"),
        (binary().replace(b"3 3", b"2 3", 1), "more than the 2 words that its header promises"),
        (b"2 3\n" + b"\xff\xfe " + VECTORS[0].tobytes() * 2, "word 1 is not UTF-8"),
        # No time of day: workers that collect a second apart would name it differently.
        (gzip.compress(GLOVE.encode(), mtime=0)[:-20], "damaged"),
    ],
)
def test_a_broken_file_is_a_sentence(tmp_path: Path, data: bytes, sentence: str) -> None:
    path = tmp_path / ("x.txt.gz" if data[:2] == b"\x1f\x8b" else "x.txt")
    path.write_bytes(data)
    with pytest.raises(ElmanError, match=sentence) as caught:
        read_word_vectors(path)
    assert "x.txt" in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    "content",
    [
        f"{'9' * 5000} {'9' * 5000}\na 1 2\n".encode(),
        b"2 999999999999\na " + bytes(64),
        b"999999999999999999 3\na 1 2 3\n",
        b"2 2\n" + b"\0" * 200,
        b"a 1e999 2\n",
    ],
)
def test_odd_headers_are_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "vectors.txt"
    path.write_bytes(content)
    with pytest.raises(ElmanError):
        read_word_vectors(path)


def parsed(path: Path) -> dict[str, list[float]]:
    """Read word2vec's text format as gensim does: split at spaces, check the header."""
    header, *lines = path.read_bytes().decode().split("\n")
    assert lines.pop() == ""
    count, size = map(int, header.split())
    rows = [line.split(" ") for line in lines]
    assert len(rows) == count
    assert all(len(row) == size + 1 for row in rows)
    return {word: np.array(numbers, np.float32).tolist() for word, *numbers in rows}


TOKENS = st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, unique=True)


@settings(deadline=None, max_examples=25)
@given(TOKENS, st.integers(1, 3), st.randoms())
def test_any_tokens_and_numbers_come_back(
    tmp_path_factory: pytest.TempPathFactory, tokens: list[str], size: int, random: Random
) -> None:
    path = tmp_path_factory.mktemp("vectors") / "any.vec"
    numbers = [random.choice([0.1, -1e-30, 3e38, random.random()]) for _ in range(size)]
    vectors = np.array([np.roll(numbers, i) + i for i in range(len(tokens))], np.float32)
    count = write_word_vectors(path, tokens, iter(vectors))
    there = parsed(path)
    assert len(there) == count == len({written_word(token) for token in tokens} - {""})
    if not count:
        return
    words, found = read_word_vectors(path)
    assert words == list(there)
    assert found.tolist() == list(there.values())
    rows, chosen = vectors_of(path, tokens)
    firsts = {written_word(token): i for i, token in reversed(list(enumerate(tokens)))}
    assert chosen.tolist() == [vectors[firsts[written_word(tokens[i])]].tolist() for i in rows]
    assert {written_word(tokens[i]) for i in rows} == set(words)


def test_white_space_is_spelled() -> None:
    assert written_word(" the") == "\u2581the"
    assert written_word("\n\u00a0\0") == "<0x0A><0xC2><0xA0><0x00>"


def test_only_wanted_words_are_kept(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("a 1 2\nb 3 4\nC 5 6\nc 7 8\n")
    rows, vectors = vectors_of(tmp_path / "x.txt", ["B", "z", "C"])
    assert rows == [0, 2]
    assert vectors.tolist() == [[3, 4], [5, 6]]
    assert vectors_of(tmp_path / "x.txt", ["z"])[1].shape == (0, 2)
