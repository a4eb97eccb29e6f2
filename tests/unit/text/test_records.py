from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elman.base.errors import ElmanError, UsageError
from elman.text.converting import named_texts, utf8_files
from elman.text.records import pieces, plain_sheets, texts_in, texts_of

ROWS = [{"id": 1, "text": "Crème brûlée"}, {"id": 2, "text": None}, {"id": 3, "text": "a\nb\n"}]
TEXTS = ["Crème brûlée", "a\nb\n"]
STORED = "Crème brûlée\na\nb\n"


def write(path: Path, rows: list[dict[str, Any]] = ROWS) -> Path:
    if path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=2)
        return path
    data = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    if path.suffix == ".zst":
        data = pytest.importorskip("zstandard").compress(data)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def read(name: str) -> str:
    return Path(name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.jsonl.gz", "a.jsonl.zst", "a.parquet"])
def test_the_texts_of_a_table(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name)
    assert list(texts_in(path)) == TEXTS
    (found,) = utf8_files([str(path)], column="text")
    assert read(found) == STORED
    assert Path(found).name == "a.txt"


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_a_sheet_is_a_table_if_it_has_the_column(tmp_path: Path, mark: str) -> None:
    rows = [("id", "text"), ("1", '"Crème, ""brûlée"""'), ("2", ""), ("3", "a; b")]
    text = "\ufeff" + "".join(f"{mark.join(row)}\r\n" for row in rows)
    path = tmp_path / ("a.tsv" if mark == "\t" else "a.csv")
    path.write_text(text.replace("a; b", '"a; b"'), encoding="utf-8", newline="")
    expected = 'Crème, "brûlée"\na; b\n'
    (found,) = utf8_files([str(path)], column="text")
    assert read(found) == expected
    (found,) = utf8_files([str(path)], column="id")
    assert read(found) == "1\n2\n3\n"
    with pytest.raises(UsageError, match="no column 'body'"):
        utf8_files([str(path)], column="body")
    path.write_bytes(text.replace("\ufeff", "").replace("a; b", '"a; b"').encode("cp1252"))
    (found,) = utf8_files([str(path)], "cp1252", column="text")
    assert read(found) == expected
    path.write_text("x\ty\n", encoding="utf-8")
    assert utf8_files([str(path)], column="text") == [str(path)]
    assert "plain text" in plain_sheets([str(path), "b.txt"])[0]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1))
def test_any_text_survives_a_table(tmp_path: Path, texts: list[str]) -> None:
    for suffix in ("jsonl", "parquet"):
        path = write(tmp_path / f"some.{suffix}", [{"body": text} for text in texts])
        assert list(texts_in(path, "body")) == texts


def test_tables_stay_as_they_are_for_those_who_read_them(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl")
    assert utf8_files([str(path)]) == [str(path)]


def test_a_folder_of_tables_is_one_text(tmp_path: Path) -> None:
    folder = tmp_path / "news"
    folder.mkdir()
    write(folder / "1.jsonl")
    write(folder / "2.parquet")
    (folder / "3.txt").write_text("plain", encoding="utf-8")
    (found,) = utf8_files([str(folder)], column="text")
    assert read(found) == STORED + STORED + "plain\n"
    assert Path(found).name == "news.txt"
    (found,) = utf8_files([str(folder / "*.jsonl")], column="text")
    assert read(found) == STORED
    (folder / "1.jsonl").unlink()
    (folder / "2.parquet").unlink()
    assert utf8_files([str(folder)], column="text") == [str(folder)]


def test_a_table_is_converted_again_only_if_it_changed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl")
    (first,) = utf8_files([str(path)], column="text")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("elman.text.converting.texts_in", None)
        assert utf8_files([str(path)], column="text") == [first]
    write(path, [{"text": "another"}])
    (second,) = utf8_files([str(path)], column="text")
    assert read(second) == "another\n"


def test_a_missing_column_is_explained(tmp_path: Path) -> None:
    for name in ("a.jsonl", "a.parquet"):
        with pytest.raises(UsageError, match=r"a\.\w+.* has no column 'txet'") as raised:
            list(texts_in(write(tmp_path / name), "txet"))
        assert "did you mean 'text'?" in raised.value.hint
        with pytest.raises(UsageError, match=r"(line|row) 1: 'id' is a whole number, not a text"):
            list(texts_in(write(tmp_path / name), "id"))


def test_damage_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1 not really")
    pytest.importorskip("pyarrow")
    with pytest.raises(ElmanError, match=r"a\.parquet is damaged"):
        list(texts_in(path))
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"text"', encoding="utf-8")
    with pytest.raises(ElmanError, match="line 2 is not JSON"):
        list(texts_in(tmp_path / "a.jsonl"))
    with pytest.raises(ElmanError, match="text 1 has half a character"):
        list(pieces(["\ud800"]))


def test_texts_and_rows_in_python(tmp_path: Path) -> None:
    assert list(texts_of(ROWS)) == TEXTS
    for data in (iter(TEXTS), iter(ROWS), ROWS):
        (found,) = named_texts(data)
        assert read(found) == STORED
    (found,) = named_texts(iter([{"body": "x"}]), "body")
    assert read(found) == "x\n"


def test_names_of_files_in_python(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("text", encoding="utf-8")
    names = [str(path)]

    def generator() -> Iterator[str]:
        yield from names

    for data in (path, str(path), [path], names, set(names), tmp_path.glob("*.txt"), generator()):
        assert named_texts(data) == names
    assert named_texts(()) == []
    with pytest.raises(UsageError, match="a path must be a str or a Path, not int"):
        named_texts([3])  # type: ignore[list-item]


def test_datasets_of_hugging_face(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.from_list(ROWS)
    for data in (dataset, dataset.to_iterable_dataset()):
        (found,) = named_texts(data)
        assert read(found) == STORED
    with pytest.raises(UsageError, match="a DatasetDict of train"):
        named_texts(datasets.DatasetDict(train=dataset))
