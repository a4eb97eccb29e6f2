from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elman.base.errors import ElmanError, UsageError
from elman.text.tables import Table, table_rows

cells = st.text(st.characters(exclude_characters='\r\n\0"', exclude_categories=["Cs"]), max_size=8)


@given(st.lists(st.tuples(cells, cells), min_size=1, max_size=4))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_quoted_cells_come_back(tmp_path: Path, rows: list[tuple[str, str]]) -> None:
    path = tmp_path / "t.csv"
    lines = "".join(f'"{a}","{b}"\n' for a, b in rows)
    path.write_text('"a","b"\n' + lines, encoding="utf-8", newline="")
    expected = [{"a": a, "b": b} for a, b in rows if (a + b).strip()]
    assert [row for _, row in Table(path)] == expected


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.tsv", "a\tb\n1\tx y\n"),
        ("t.tsv", '"a"\t"b"\n"1"\t"x y"\n'),
        ("t.tsv", 'a\tb\n1\t"x y"\n'),
        ("t.csv", "a;b\n1;x y\n"),
        ("t.csv", "\ufeffa;b\r\n1;x y\r\n"),
        ("t", "a,b\n1,x y\n"),
        ("t.jsonl", '{"a": 1, "b": "x y"}\n'),
    ],
)
def test_separators_are_found_out(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    table = Table(path)
    for _ in range(2):  # it can be read again
        assert [row for _, row in table] == [{"a": "1", "b": "x y"}]


def test_a_spreadsheet_quotes_single_cells_of_a_tab_separated_table(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    path.write_text('a\tb\n1\t"He said ""yes"", and left."\n2\t"No, no."\n3\tNo.\n')
    found = [row["b"] for _, row in Table(path)]
    assert found == ['He said "yes", and left.', "No, no.", "No."]
    # Marks that are part of a text stay.
    path.write_text('a\tb\n1\t"Yes,"\n2\t"No\n3\tno"\n')
    assert [row["b"] for _, row in Table(path)] == ['"Yes,"', '"No', 'no"']


def test_rows_without_a_header_follow_the_separator_of_the_first_line(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('label;text\n1;"x; y"\n')
    assert list(table_rows(path)) == [(1, ["label", "text"]), (2, ["1", "x; y"])]
    path.write_text("1,x; y; z\n")
    assert list(table_rows(path)) == [(1, ["1", "x; y; z"])]


def test_damage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    for content, message in (
        ("a,b\n1\n", "line 2: 1 columns instead of 2"),
        ("a,,b\n1,2,3\n", "a nameless one"),
        ('a,b\n1,"x\n', "line 2"),
    ):
        path.write_text(content, encoding="utf-8")
        with pytest.raises(ElmanError, match=message):
            list(Table(path))
    path.write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(UsageError, match="has no column 'c'"):
        Table(path).check(["a", "c"])


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b'a,b\n1,"x y\n2,z\n', "line 2: a quotation mark is not closed"),
        (b"a,b\r1,x\r2,y\r", "t.csv ends its lines with CR alone"),
    ],
)
def test_quotes_and_line_ends_are_explained(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(ElmanError, match=told) as caught:
        list(Table(path))
    assert caught.value.hint


@pytest.mark.parametrize("name", ["t.xlsx", "t.ods", "t.docx", "t.pdf"])
def test_documents_of_other_programs_are_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"PK\x03\x04\x14\x00\x06\x00")
    with pytest.raises(ElmanError, match="is not a text file") as caught:
        list(Table(path))
    assert "save it as" in caught.value.hint
