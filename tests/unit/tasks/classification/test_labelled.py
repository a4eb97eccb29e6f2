"""Labelled texts in every form, columns found out, damage named by line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from elman.base.errors import ElmanError, UsageError
from elman.tasks.classification.reading import Columns, find_columns, read_labelled, read_rows

TEXTS = ['he said "no', "a film, of sorts", "well - made and moving", "dull", "so it goes on"]
LABELS = ["bad", "bad", "good", "bad", "good"]
EXPECTED = list(zip(TEXTS, LABELS, strict=True))


def read(path: Path, label: str = "", text: str = "") -> list[tuple[str, str | None]]:
    return [(t, x) for (t,), x in read_labelled([str(path)], Columns(label, text))]


def write(path: Path, content: str) -> Path:
    path.write_text(content, encoding="utf-8")
    return path


def test_tables_without_names(tmp_path: Path) -> None:
    first = write(tmp_path / "a.tsv", "".join(f"{x}\t{t}\n" for t, x in EXPECTED))
    assert read(first) == EXPECTED
    assert find_columns(first, Columns()) == Columns("1", "2")
    last = write(tmp_path / "SMSLike", "".join(f"{t}\t{x}\n" for t, x in EXPECTED))
    assert read(last) == EXPECTED
    assert find_columns(last, Columns()) == Columns("2", "1")
    assert read(last, "2", "1") == EXPECTED


def test_tables_with_names(tmp_path: Path) -> None:
    header = "id\tSentence\tLabel\n"
    rows = "".join(f"{i}\t{t}\t{x}\n" for i, (t, x) in enumerate(EXPECTED))
    assert read(write(tmp_path / "a.tsv", header + rows)) == EXPECTED
    assert read(tmp_path / "a.tsv", text="id")[0] == ("0", "bad")


LONG = [(f"{t}, as one of them said on day {i}", x) for i in range(4) for t, x in EXPECTED]


@pytest.mark.parametrize(
    ("header", "labels"),
    [
        ("what_they_wrote,how_good", None),  # no known name
        ("comments,rating", {"bad": "1", "good": "5"}),
        ("Freitext,Note", {"bad": "1.5", "good": "2.0"}),
        ("review,verdict", None),  # one known name
    ],
)
def test_a_header_with_other_names_is_no_row(
    tmp_path: Path, header: str, labels: dict[str, str] | None
) -> None:
    expected = [(t, labels[x] if labels else x) for t, x in LONG]
    rows = "".join('"{}",{}\n'.format(t.replace('"', '""'), x) for t, x in expected)
    path = write(tmp_path / "a.csv", f"{header}\n{rows}")
    assert read(path) == expected
    turned = "".join('{},"{}"\n'.format(x, t.replace('"', '""')) for t, x in expected)
    names = ",".join(reversed(header.split(",")))
    assert read(write(tmp_path / "b.csv", f"{names}\n{turned}")) == expected
    # Without it, the first row is one.
    assert read(write(tmp_path / "c.csv", rows)) == expected


def test_a_first_row_that_may_be_either_is_refused(tmp_path: Path) -> None:
    names = "".join(f"{x}\t{t}\n" for t, x in [("Rossi", "Italian"), ("Murphy", "Irish")] * 10)
    path = write(tmp_path / "names.tsv", "Czech\tNovak\n" + names)
    with pytest.raises(UsageError, match=r"line 1 of .* may be a header or a row") as caught:
        read(path)
    assert "--column" in caught.value.hint
    assert read(path, "1", "2")[0] == ("Novak", "Czech")
    assert read(path, "Czech", "Novak")[0] == ("Rossi", "Italian")


def test_csv_is_quoted_and_may_be_compressed(tmp_path: Path) -> None:
    rows = "text,class\n" + "".join(
        '"{}",{}\n'.format(t.replace('"', '""'), x) for t, x in EXPECTED
    )
    rows += '"two\nlines",good\n'
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(rows.encode()))
    assert read(path) == [*EXPECTED, ("two\nlines", "good")]


def test_json_lines(tmp_path: Path) -> None:
    rows = "".join(json.dumps({"label": x, "review": t, "n": 3}) + "\n" for t, x in EXPECTED)
    assert read(write(tmp_path / "a.jsonl", rows)) == EXPECTED
    odd = "".join(json.dumps({"a": i, "b": t}) + "\n" for i, (t, _) in enumerate(EXPECTED))
    assert read(write(tmp_path / "b.jsonl", odd), label="a")[1] == (TEXTS[1], "1")


def test_a_folder_has_a_file_for_each_label(tmp_path: Path) -> None:
    folder = tmp_path / "names"
    folder.mkdir()
    write(folder / "Czech.txt", "Novák\nDvořák\n\n")
    write(folder / "Irish.txt", "O'Neill")
    assert read(folder) == [("Novák", "Czech"), ("Dvořák", "Czech"), ("O'Neill", "Irish")]


def test_a_file_that_is_named_twice_is_read_once(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "".join(f"{x}\t{t}\n" for t, x in EXPECTED))
    twice = read_labelled([str(path), f"{tmp_path}/./a.tsv"], Columns("1", "2"))
    assert twice == read_labelled([str(path)], Columns("1", "2"))


def test_texts_alone_can_be_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "one\ntwo\n")
    rows = list(read_rows(path, Columns(), labels_needed=False))
    assert rows == [(("one",), None), (("two",), None)]
    with pytest.raises(UsageError, match="has no column of labels"):
        read(path)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.tsv", "x\ttext one\nx\ttext two\ny\n", r"a\.tsv, line 3: no column 2, only 1"),
        ("a.tsv", "label\ttext\nx\ta\tb\n", r"line 2: 3 columns instead of 2"),
        ("a.tsv", "x\ttext one\n\ttext two\n", r"line 2: the label is missing"),
        ("a.jsonl", '{"label": "x", "text": "y"}\n{"label"\n', r"line 2 is not JSON"),
        ("a.jsonl", '{"label": "x", "text": "y"}\n[1]\n', r"line 2 is not an object"),
        ("a.jsonl", '{"label": "x", "text": "y"}\n{"text": "y"}\n', r"line 2: no 'label'"),
        ("a.csv", 'text,label\n"a,b\n', r"a\.csv, line 2: a quotation mark is not closed"),
    ],
)
def test_damage_is_named_by_file_and_line(
    tmp_path: Path, name: str, content: str, said: str
) -> None:
    with pytest.raises(ElmanError, match=said) as caught:
        read(write(tmp_path / name, content))
    assert caught.value.hint


def test_columns_that_are_not_there(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "label\ttext\nx\ty\n")
    with pytest.raises(UsageError, match="no column called 'lable'") as caught:
        read(path, label="lable")
    assert "label" in caught.value.hint
    with pytest.raises(UsageError, match="no column of texts"):
        read(write(tmp_path / "a.jsonl", '{"label": "x", "n": 1}\n'))


@pytest.mark.parametrize(
    ("name", "line", "hint"),
    [
        ("a.txt", "{text},{label}", "columns are separated by tabs; for ',', rename it to a.csv"),
        ("a.txt.gz", "{text};{label}", "for ';', rename it to a.csv.gz"),
        ("a.tsv", "{text}|{label}", "columns are separated by tabs; replace '|': tr '|' '\\t'"),
        ("a.csv", "{text}|{label}", "columns are separated by commas, semicolons or tabs; repl"),
        ("a.txt", "__label__{label} {text}", "for fastText's form: sed 's/ /\\t/' OLD > NEW.tsv"),
        ("a.txt", "{text}", "name it with --column, or add one before the text"),
    ],
)
def test_other_separators_are_recognised(tmp_path: Path, name: str, line: str, hint: str) -> None:
    lines = "".join(line.format(text="some words", label=x) + "\n" for x in LABELS)
    path = tmp_path / name
    path.write_bytes(gzip.compress(lines.encode()) if name.endswith(".gz") else lines.encode())
    with pytest.raises(UsageError, match="has no column of labels") as caught:
        read(path)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        ('[{"text": "a", "label": "x"}]', "write one object per line: jq -c '.[]' OLD > NEW.jsonl"),
        ('[\n  {"text": "a",\n "label": "x"}\n]\n', "write one object per line: jq"),
        ('{"text": "a", "label": "x"}\n', "rename it to a.jsonl"),
    ],
)
def test_json_that_is_not_named_as_lines(tmp_path: Path, content: str, hint: str) -> None:
    with pytest.raises(UsageError, match="has no column of labels") as caught:
        read(write(tmp_path / "a.json", content))
    assert caught.value.hint.startswith(hint)


def test_parquet_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", "PAR1\0")
    for how in (read, lambda path: find_columns(path, Columns())):
        with pytest.raises(UsageError, match=r"classifier does not read \.parquet files") as caught:
            how(path)
        assert "to_csv" in caught.value.hint


def test_null_is_missing(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "a", "label": 1}\n{"text": null, "label": 2}\n')
    assert read(path) == [("a", "1")]
    write(path, '{"text": "a", "label": "x"}\n{"text": "b", "label": null}\n')
    with pytest.raises(ElmanError, match=r"a\.jsonl, line 2: the label is missing"):
        read(path)


def test_a_column_of_labels_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "good,well made\nbad,dull\n")
    with pytest.raises(UsageError, match="has no column of texts") as caught:
        read(path, "1")
    assert "rename it to a.csv" in caught.value.hint


def test_white_space_around_labels_does_not_count(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,label\none,very good \ntwo, very good\n")
    assert read(path) == [("one", "very good"), ("two", "very good")]
    path = write(tmp_path / "b.csv", "text,label\none, \n")
    with pytest.raises(ElmanError, match=r"b\.csv, line 2: the label is missing"):
        read(path)


def test_the_labels_are_not_the_texts() -> None:
    with pytest.raises(UsageError, match="column label is named twice"):
        Columns("label", "label")


PAIRS = [(("a dog runs", "an animal runs"), "yes"), (("a dog runs", "no dog runs"), "no")]
NAMED = "n\tsentence_A\tsentence_B\tentailed\n" + "".join(
    f"{i}\t{a}\t{b}\t{x}\n" for i, ((a, b), x) in enumerate(PAIRS)
)


@pytest.mark.parametrize(
    "columns",
    [
        Columns("entailed", "sentence_A", "sentence_B"),
        Columns("entailed", "", "sentence_B"),  # the longest of the others
        Columns("4", "sentence_A", "sentence_B"),
    ],
)
def test_pairs_with_names(tmp_path: Path, columns: Columns) -> None:
    path = write(tmp_path / "a.tsv", NAMED)
    assert read_labelled([str(path)], columns) == PAIRS


def test_pairs_by_number_and_as_objects(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "".join(f"{x}\t{a}\t{b}\n" for (a, b), x in PAIRS))
    assert read_labelled([str(path)], Columns("", "", "3")) == PAIRS
    objects = [{"label": x, "premise": a, "hypothesis": b} for (a, b), x in PAIRS]
    path = write(tmp_path / "a.jsonl", "".join(json.dumps(one) + "\n" for one in objects))
    assert read_labelled([str(path)], Columns("", "premise", "hypothesis")) == PAIRS
    path = write(tmp_path / "b.tsv", "yes\tone\t \nno\tone\ttwo\n")
    assert read_labelled([str(path)], Columns("1", "2", "3")) == [(("one", "two"), "no")]


def test_pairs_that_are_none(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", NAMED)
    with pytest.raises(UsageError, match="no column called 'sentence_C'"):
        read_labelled([str(path)], Columns("entailed", "sentence_A", "sentence_C"))
    with pytest.raises(UsageError, match="sentence_A is named twice"):
        Columns("entailed", "sentence_A", "sentence_A")
    with pytest.raises(ElmanError, match="line 2: no column 3, only 2"):
        path = write(tmp_path / "b.tsv", "yes\tone\ttwo\nno\tone\n")
        read_labelled([str(path)], Columns("1", "2", "3"))


def test_a_folder_has_no_pairs(tmp_path: Path) -> None:
    write(tmp_path / "yes.txt", "one\n")
    with pytest.raises(UsageError, match="is a folder with a file for each label, without pairs"):
        read_labelled([str(tmp_path)], Columns("1", "2", "3"))


def test_a_column_of_texts_without_a_known_name_is_the_longest(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "label\tid\tutterance\nx\t1\thello there\n")
    assert read_labelled([str(path)], Columns("label", "")) == [(("hello there",), "x")]
