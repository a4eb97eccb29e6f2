"""Files become blocks of text: nothing is lost or loaded whole, errors name file and line."""

from __future__ import annotations

import gzip
import struct
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elman.base.errors import ElmanError, UsageError
from elman.text import line_limit
from elman.text.converting import utf8_files
from elman.text.sources import (
    BLOCK_SIZE,
    byte_blocks,
    corpus_blocks,
    corpus_readers,
    expand,
    file_lines,
    sample,
)

LINES = st.lists(
    st.text(max_size=40).filter(lambda s: "\0" not in s and "\r" not in s), max_size=12
)


def write(path: Path, data: bytes | str) -> Path:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def iter_blocks(path: Path, size: int = BLOCK_SIZE) -> Iterator[str]:
    return (block.text for block in byte_blocks(path, size))


@given(lines=LINES, size=st.integers(4, 64), final=st.booleans())
@settings(max_examples=150)
def test_blocks_joined_are_the_text(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], size: int, final: bool
) -> None:
    text = "\n".join(lines) + ("\n" if final else "")
    path = write(tmp_path_factory.mktemp("blocks") / "a.txt", text)
    assert "".join(iter_blocks(path, size)) == text.removeprefix("\ufeff")


@given(lines=LINES, size=st.integers(4, 64))
@settings(max_examples=100)
def test_blocks_know_the_line_they_begin_in(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], size: int
) -> None:
    path = write(tmp_path_factory.mktemp("lines") / "a.txt", "\n".join(lines))
    line = 1
    for block in byte_blocks(path, size):
        assert block.first_line == line
        line += block.text.count("\n")


def test_blocks_end_at_line_ends_and_long_lines_between_words(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one two\n" * 10 + "a long line of words here\n" + "x" * 50)
    blocks = list(iter_blocks(path, 16))
    assert blocks[0] == "one two\none two\n"
    assert "a long line of" in blocks
    assert " words here\n" in blocks
    assert max(map(len, blocks)) <= 32


def test_a_block_is_bounded_even_in_one_endless_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "ä" * 500_000)
    sizes = [len(block.data) for block in byte_blocks(path, 1 << 14)]
    assert sum(sizes) == 1_000_000
    assert max(sizes) <= 1 << 15


def test_windows_line_ends_and_byte_order_mark_go(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"\xef\xbb\xbfone\r\ntwo\r\n\r\nlone\rreturn")
    for size in (4, 5, 6, 7, 1 << 20):
        assert "".join(iter_blocks(path, size)) == "one\ntwo\n\nlone\rreturn"


def test_a_long_line_is_not_cut_inside_a_windows_line_end(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"x" * 15 + b"\r\n" + b"y" * 15 + b"\r\n")
    assert "".join(iter_blocks(path, 16)) == "x" * 15 + "\n" + "y" * 15 + "\n"


@pytest.mark.parametrize("size", [16, 1 << 20])
def test_an_encoding_error_names_file_and_line(tmp_path: Path, size: int) -> None:
    path = write(tmp_path / "latin.txt", b"fine\n" * 41 + b"caf\xe9 au lait\n")
    with pytest.raises(ElmanError, match=r"latin\.txt, line 42: byte 0xe9") as caught:
        list(iter_blocks(path, size))
    assert "iconv" in caught.value.hint


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.bin", b"ELF\n\0\0\0")
    with pytest.raises(ElmanError, match=r"not a text file: line 2 holds a NUL byte"):
        list(iter_blocks(path))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("size", [16, 1 << 20])
def test_utf16_is_recognised(tmp_path: Path, encoding: str, size: int) -> None:
    path = write(tmp_path / "a.txt", "hello\nto the café\n".encode(encoding))
    with pytest.raises(ElmanError, match=rf"a\.txt is {encoding.upper()}, not UTF-8") as caught:
        list(iter_blocks(path, size))
    assert f"iconv -f {encoding} -t utf-8" in caught.value.hint
    name = str(path)
    assert Path(utf8_files([name], encoding)[0]).read_text() == "hello\nto the café\n"


def test_utf16_without_its_mark_says_how_to_name_it(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "hello\n".encode("utf-16-le"))
    with pytest.raises(ElmanError, match="utf-16: byte 1") as caught:
        utf8_files([str(path)], "utf-16")
    assert caught.value.hint == "write --encoding utf-16-le"
    path = write(tmp_path / "b.txt", b"hello\n")
    with pytest.raises(ElmanError, match="utf-16: byte 1") as caught:
        utf8_files([str(path)], "utf-16")
    assert "drop --encoding" in caught.value.hint


def test_gzip_and_zstandard_read_like_plain_text(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    text = "line with é\n" * 1000
    plain = write(tmp_path / "a.txt", text)
    zipped = write(tmp_path / "a.txt.gz", gzip.compress(text.encode()))
    half = len(text) // 2
    frames = b"".join(zstandard.compress(part.encode()) for part in (text[:half], text[half:]))
    zstd = write(tmp_path / "a.txt.zst", frames)
    expected = list(iter_blocks(plain, 500))
    assert list(iter_blocks(zipped, 500)) == expected
    assert list(iter_blocks(zstd, 500)) == expected


def test_damaged_compressed_files_say_so(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    data = b"some text\n" * 5000
    cut = write(tmp_path / "cut.gz", gzip.compress(data)[:-20])
    fake = write(tmp_path / "fake.gz", b"not gzip at all")
    broken = write(tmp_path / "broken.zst", zstandard.compress(data)[:4] + b"\xff" * 40)
    for path in (cut, fake, broken):
        with pytest.raises(ElmanError, match="is damaged") as caught:
            list(iter_blocks(path))
        assert caught.value.hint


def test_zstandard_missing_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(ElmanError, match="zstandard") as caught:
        list(iter_blocks(write(tmp_path / "a.zst", b"x")))
    assert "elman[zstd]" in caught.value.hint


def test_many_files_are_kept_apart_by_a_line_end(tmp_path: Path) -> None:
    files = [
        write(tmp_path / "a", "one"),
        write(tmp_path / "b", "two\n"),
        write(tmp_path / "c", "end"),
    ]
    assert "".join(b.text for b in corpus_blocks(files)) == "one\ntwo\nend"
    assert "".join(b.text for b in corpus_blocks(files, end_lines=True)) == "one\ntwo\nend\n"


def test_expand_takes_files_folders_and_patterns_each_once(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.txt", "a"), write(tmp_path / "b.txt", "b")
    write(tmp_path / ".hidden", "h")
    write(tmp_path / "empty.txt", "")
    (tmp_path / "deep").mkdir()
    c = write(tmp_path / "deep" / "c.txt", "c")
    assert expand(tmp_path) == [a, b, c]
    assert expand([b, tmp_path]) == [b, a, c]
    assert expand([str(a), a, tmp_path / "deep" / ".." / "a.txt"]) == [a]
    assert expand(str(tmp_path / "[ab].txt")) == [a, b]


def test_expand_explains_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "train.txt", "x")
    write(tmp_path / "void.txt", "")
    (tmp_path / "hollow").mkdir()
    cases = [
        ("trian.txt", "does not exist", "did you mean 'train.txt'?"),
        ("mine.txt", "does not exist", "spelling"),  # only the ending is like that of train.txt
        ("train.text", "does not exist", "did you mean 'train.txt'?"),
        ("far/away.txt", "does not exist", "spelling"),
        ("python-dosc", "no file and no built-in corpus", "did you mean 'python-docs'?"),
        ("qqqq", "no file and no built-in corpus", "king-james"),
        ("void.txt", "is empty", "some text"),
        ("hollow", "has no text files", "folder"),
        ("*.csv", "no file matches", "pattern"),
    ]
    for path, message, hint in cases:
        with pytest.raises(ElmanError, match=message) as caught:
            expand(path)
        assert hint in caught.value.hint
    with pytest.raises(UsageError, match="no text"):
        expand([])


def test_a_sample_is_spread_over_the_whole_text(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "".join(f"{i:09d}\n" for i in range(10_000)))
    blocks, num_bytes = sample([path], 10_000, block_size=1000)
    assert num_bytes == 100_000
    assert 5_000 <= sum(len(b.data) for b in blocks) <= 10_000
    starts = [int(b.text[:9]) for b in blocks]
    assert starts[0] == 0
    assert starts[-1] > 8_000
    assert len({b - a for a, b in pairwise(starts)}) == 1
    everything, _ = sample([path], 10**9, block_size=1000)
    assert "".join(b.text for b in everything) == path.read_text()


def _gzip_member(text: bytes, level: int) -> bytes:
    return gzip.compress(text, level)


def _zstandard_frame(text: bytes, level: int) -> bytes:
    if not text:
        return struct.pack("<II", 0x184D2A53, level) + bytes(level)  # a frame to be skipped
    zstandard: Any = pytest.importorskip("zstandard")
    settings = {"write_checksum": level % 2 == 0, "write_content_size": level % 3 == 0}
    return bytes(zstandard.ZstdCompressor(level=level, **settings).compress(text))


PARTS = st.lists(
    st.tuples(st.binary(max_size=200).map(lambda b: b.replace(b"\r", b"")), st.integers(1, 9)),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize(("suffix", "packed"), [("gz", _gzip_member), ("zst", _zstandard_frame)])
@given(parts=PARTS, share=st.floats(0, 1), garbage=st.binary(max_size=6))
def test_a_truncated_compressed_file_is_refused(
    tmp_path_factory: pytest.TempPathFactory,
    suffix: str,
    packed: Any,
    parts: list[tuple[bytes, int]],
    share: float,
    garbage: bytes,
) -> None:
    path = tmp_path_factory.getbasetemp() / f"cut.{suffix}"
    pieces = [packed(*part) for part in parts]
    ends = {len(b"".join(pieces[:number])): number for number in range(len(pieces) + 1)}
    data = b"".join(pieces)
    cut = round(share * len(data))
    path.write_bytes(data[:cut])

    def read() -> bytes:
        return b"".join(block.data for block in byte_blocks(path))

    if cut in ends:
        text = b"".join(text for text, _ in parts[: ends[cut]])
        assert read() == text.removeprefix(b"\xef\xbb\xbf")
    else:
        with pytest.raises(ElmanError, match=r"cut\.\w+ is damaged"):
            read()
    path.write_bytes(data + garbage)
    if garbage.strip(b"\0") or (garbage and suffix == "zst"):
        with pytest.raises(ElmanError, match=r"cut\.\w+ is damaged"):
            read()


@pytest.mark.parametrize("suffix", ["txt", "txt.gz"])
def test_a_line_above_the_limit_is_refused_with_its_number(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"long.{suffix}"
    for line, number in (("ä" * 11, 3), ("x" * 9_000_000, 3), ("x" * 5_000_000 + "\nb\n", 3)):
        text = f"a\n\n{line}".encode()
        path.write_bytes(gzip.compress(text, 1) if suffix.endswith("gz") else text)
        with pytest.raises(ElmanError, match=rf"line {number} is longer than 20 bytes") as caught:
            list(file_lines(path, 20))
        assert "--max-line" in caught.value.hint
        assert "".join(file_lines(path, 10_000_000)) == text.decode()
    path.write_bytes(gzip.compress(b"x" * 20) if suffix.endswith("gz") else b"x" * 20)
    assert list(file_lines(path, 20)) == ["x" * 20]


def test_the_limit_can_be_raised(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_text("x" * (line_limit.LONGEST_LINE + 1))
    with pytest.raises(ElmanError, match="longer than 1,048,576 bytes"):
        list(file_lines(path))
    line_limit.set_longest_line(1 << 21)
    try:
        assert len(next(file_lines(path))) == line_limit.LONGEST_LINE + 1
    finally:
        line_limit.set_longest_line(None)


@pytest.mark.parametrize("size", [5, 64, 1 << 20])
@pytest.mark.parametrize(
    "contents",
    [
        [b"one\ntwo\n\nthree", b"", b"\xef\xbb\xbf", b"\xef\xbb\xbffour\r\nfive\r\n", b"\n\n"],
        [b"a long line " * 10_000, b"a long line " * 10_000 + b"\nshort\n"],
        ["Zeile \u00e9\r\n".encode() * 99],
    ],
)
def test_blocks_that_any_thread_reads_are_the_same_text(
    tmp_path: Path, contents: list[bytes], size: int
) -> None:
    files = [tmp_path / f"{i}.txt" for i in range(len(contents))]
    for file, content in zip(files, contents, strict=True):
        file.write_bytes(content)
    (tmp_path / "packed.txt.gz").write_bytes(gzip.compress(b"in a file\nthat is compressed"))
    files.append(tmp_path / "packed.txt.gz")
    expected = "".join(block.text for block in corpus_blocks(files, end_lines=True))
    readers = list(corpus_readers(files, size, size))
    found = [read().text for read in reversed(readers)]
    assert "".join(reversed(found)) == expected


def test_an_error_in_a_block_that_any_thread_reads_names_its_line(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_bytes(b"good\n" * 50 + b"b\xffd\n" + b"good\n" * 9)
    blocks = [read() for read in corpus_readers([file], 20)]
    assert len(blocks) > 5
    with pytest.raises(ElmanError, match="line 51: byte 0xff"):
        for block in blocks:
            _ = block.text


def test_a_run_folder_is_no_text(tmp_path: Path) -> None:
    for name in ("config.json", "metrics.jsonl"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(UsageError, match="is a run folder, not a text") as caught:
        expand(tmp_path)
    assert "--from" in caught.value.hint
