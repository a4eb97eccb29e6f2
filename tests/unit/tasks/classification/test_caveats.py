"""What a run says of its texts and labels before it learns from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from elman.base.errors import UsageError
from elman.recipes.resolve import resolve
from elman.tasks.classification.task import set_up

ROWS = [(f"text number {i}", ("bad", "good")[i % 2]) for i in range(40)]


def table(path: Path, rows: list[tuple[str, str]]) -> str:
    path.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
    return str(path)


def caveats(folder: Path, *rows: list[tuple[str, str]]) -> list[str]:
    """Of a run on tables for training, validation and test."""
    train, *held_out = (table(folder / f"{i}.csv", some) for i, some in enumerate(rows))
    given = dict(zip(("valid", "test"), ([name] for name in held_out), strict=False))
    config = resolve("classifier", [train], device="cpu", **given).config
    return set_up(config, folder / "run", False).caveats


def new(rows: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(f"another {text}", label) for text, label in rows]


def test_usual_data_has_none(tmp_path: Path) -> None:
    assert caveats(tmp_path, ROWS, new(ROWS), new(ROWS)) == []


def test_rows_without_a_text_are_counted(tmp_path: Path) -> None:
    rows = [("", label) if i < 3 else (text, label) for i, (text, label) in enumerate(ROWS)]
    assert caveats(tmp_path, rows, new(ROWS)) == ["3 rows without a text are left out"]


def test_labels_that_differ_in_capitals(tmp_path: Path) -> None:
    rows = [(text, label.title() if i % 5 == 0 else label) for i, (text, label) in enumerate(ROWS)]
    assert caveats(tmp_path, rows, new(ROWS)) == [
        "labels that differ only in capitals: Bad and bad, Good and good"
    ]


def test_labels_that_training_lacks(tmp_path: Path) -> None:
    rows = [*new(ROWS)[:30], *((f"one more {i}", "neutral") for i in range(10))]
    assert caveats(tmp_path, ROWS, new(ROWS), rows) == [
        "10 of 40 test texts have labels that the training texts lack: neutral"
    ]
    with pytest.raises(UsageError, match="no validation text has a label of the training texts"):
        caveats(tmp_path, ROWS, [(text, "neutral") for text, _ in ROWS])


def test_texts_that_are_also_learnt_from(tmp_path: Path) -> None:
    assert caveats(tmp_path, ROWS, ROWS[:10] + new(ROWS)[10:], new(ROWS)) == [
        "10 of 40 validation texts are also among those to learn from"
    ]
    # A few texts that occur twice are usual.
    assert caveats(tmp_path, ROWS, ROWS[:1] + new(ROWS)[1:]) == []
    (note,) = caveats(tmp_path, ROWS[:4] * 10)
    assert note == "4 of 4 validation texts are also among those to learn from"


def test_the_labels_of_a_folder_are_named(tmp_path: Path) -> None:
    for label in ("bad", "good"):
        (tmp_path / f"{label}.txt").write_text(f"a {label} text\n" * 10)
    notes = resolve("classifier", [str(tmp_path)], device="cpu").notes
    assert notes[0] == "labels are the names of the files (2 labels: bad, good)"


def test_a_folder_with_a_file_for_each_text_is_refused(tmp_path: Path) -> None:
    for i in range(30):
        folder = tmp_path / ("bad", "good")[i % 2]
        folder.mkdir(exist_ok=True)
        (folder / f"{i}.txt").write_text(f"text number {i}\n")
    with pytest.raises(UsageError, match="hardly any label occurs twice") as caught:
        resolve("classifier", [str(tmp_path)], device="cpu")
    assert "put all texts of a label into one file" in caught.value.hint
