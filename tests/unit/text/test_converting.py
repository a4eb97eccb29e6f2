from __future__ import annotations

import gzip
import io
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elman.base.errors import ElmanError, UsageError
from elman.text import converting
from elman.text.converting import utf8_files

TEXT = "Crème brûlée, naïve façade\nüber größe\n"


def read(names: list[str]) -> list[str]:
    return [Path(name).read_text(encoding="utf-8") for name in names]


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16"])
def test_a_file_is_converted(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "menu.txt.gz"
    path.write_bytes(gzip.compress(TEXT.encode(encoding)))
    (found,) = utf8_files([str(path)], encoding)
    assert read([found]) == [TEXT]
    assert Path(found).name == "menu.txt"
    assert utf8_files([str(path)], encoding) == [found]


def test_a_converted_table_is_still_one(tmp_path: Path) -> None:
    path = tmp_path / "menu.csv.gz"
    path.write_bytes(gzip.compress(TEXT.encode("cp1252")))
    (found,) = utf8_files([str(path)], "cp1252")
    assert Path(found).name == "menu.csv"


def test_a_converted_folder_is_still_one(tmp_path: Path) -> None:
    folder = tmp_path / "menus"
    for name in ("french.txt", "more/german.txt.gz"):
        path = folder / name
        path.parent.mkdir(exist_ok=True, parents=True)
        data = f"{TEXT}{name}\n".encode("cp1252")
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    (found,) = utf8_files([str(folder)], "cp1252")
    assert Path(found).name == "menus"
    assert utf8_files([str(folder)], "cp1252") == [found]
    french, german = Path(found, "french.txt"), Path(found, "more/german.txt")
    assert read([str(french)]) == [f"{TEXT}french.txt\n"]
    assert read([str(german)]) == [f"{TEXT}more/german.txt.gz\n"]
    (folder / "french.txt.gz").write_bytes(gzip.compress(b"x"))
    with pytest.raises(UsageError, match="compressed and plain"):
        utf8_files([str(folder)], "cp1252")


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.integers(1, 7))
def test_pieces_may_end_within_a_character(text: str, size: int) -> None:
    stream = io.BytesIO(text.encode("utf-16-le"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(converting, "PIECE", size)
        pieces = converting._pieces(stream, "x", "utf-16-le")
        assert b"".join(pieces).decode() == text


def test_stdin_becomes_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode("latin-1"))))
    (found,) = utf8_files(["-"], "latin-1")
    assert read([found]) == [TEXT]
    assert Path(found).name == "stdin.txt"


def test_utf8_files_stay_where_they_are() -> None:
    assert utf8_files(["a.txt", "python-docs"]) == ["a.txt", "python-docs"]
    assert utf8_files(["a.txt"], "UTF8") == ["a.txt"]


def test_wrong_encodings_are_explained(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"abc \xff")
    with pytest.raises(UsageError, match="no text encoding 'latin1x'"):
        utf8_files([str(path)], "latin1x")
    with pytest.raises(UsageError, match="no text encoding 'base64'"):
        utf8_files([str(path)], "base64")
    with pytest.raises(ElmanError, match="is not ascii: byte 5"):
        utf8_files([str(path)], "ascii")


def test_the_byte_that_is_wrong_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it comes after a character that two reads share."""
    monkeypatch.setattr(converting, "PIECE", 4)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"abc\xc3\xa9\xff")))
    with pytest.raises(ElmanError, match="stdin is not utf-8: byte 6 "):
        utf8_files(["-"])
