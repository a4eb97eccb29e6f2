"""From labelled texts to a classifier and back, as a user types it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import elman as library
from elman.tasks.classification.settings import LabelledData
from elman.tasks.classification.task import split
from elman.testing import TOY_LABELLED

Elman = Callable[..., Any]
Reports = Callable[[Path], list[dict[str, Any]]]
SMALL = (
    *("--set", "model.hidden_size=12", "--set", "model.embedding_size=12"),
    *("--set", "optimiser.learning_rate=0.02", "--set", "schedule.warmup_steps=0"),
    *("--seed", "1", "--device", "cpu"),
)


@pytest.fixture(scope="module")
def table(write: Callable[[str, str], Path]) -> Path:
    return write("toy.tsv", TOY_LABELLED)


@pytest.fixture(scope="module")
def classifier(table: Path, elman: Elman) -> Path:
    out = table.parent / "classifier"
    result = elman(
        *("train", "classifier", table, "--test", table, "--out", out, "--steps", 40, *SMALL)
    ).ok()
    assert "labels are in column 1, texts in column 2 (2 labels: bad, good)" in result.err
    assert "test accuracy" in result.out
    assert "perplexity" not in result.out + result.err
    return out


def test_the_run_tells_its_metrics_by_name(classifier: Path, reports: Reports) -> None:
    lines = reports(classifier)
    summary = lines[-1]["summary"]
    assert summary["accuracy"] == lines[-1]["valid_accuracy"] > 0.8
    assert summary["test_accuracy"] > 0.9
    assert {"balanced_accuracy", "macro_f1", "f1", "test_f1"} <= summary.keys()
    assert json.loads((classifier / "labels.json").read_text()) == ["bad", "good"]
    card = (classifier / "card.md").read_text()
    assert "A classifier of texts with 2 labels (bad, good)" in card
    assert f"balanced accuracy {summary['balanced_accuracy']:.2%}" in card
    assert "on 10% of the texts, drawn at random |" in card


def test_evaluate_and_info(classifier: Path, table: Path, elman: Elman, tmp_path: Path) -> None:
    found = elman("evaluate", classifier, table, "--json").json
    assert found["accuracy"] > 0.9
    assert sum(found["confusion"]["good"].values()) == found["labels"]["good"]["count"] == 64
    picture = tmp_path / "confusion.png"
    shown = elman("evaluate", classifier, table, "--confusion", picture)
    assert picture.stat().st_size > 1000
    assert "balanced accuracy" in shown.out
    assert "precision" in shown.out
    about = elman("info", classifier)
    assert "a classifier with 2 labels over" in about.out
    (tmp_path / "other.tsv").write_text(TOY_LABELLED + "odd\tthe pupil found her book\n")
    assert (
        elman("evaluate", classifier, tmp_path / "other.tsv", "--json").json["unknown_labels"] == 1
    )


def test_classify_lines_and_tables(classifier: Path, elman: Elman, tmp_path: Path) -> None:
    texts = "the teacher found her book\n\nthe pupil lost the laptop\n"
    rows = [line.split("\t") for line in elman("classify", classifier, stdin=texts).out.split("\n")]
    assert rows[0] == ["label", "probability", "text"]
    assert [row[0] for row in (rows[1], rows[3])] == ["good", "bad"]
    assert rows[2][2] == ""  # a text without words gets a label too
    objects = elman("classify", classifier, "--json", stdin=texts).json
    assert objects[0]["label"] == "good"
    assert sum(objects[0]["probabilities"].values()) == pytest.approx(1.0)
    lines = elman("classify", classifier, "--jsonl", stdin=texts).out.splitlines()
    assert [json.loads(line) for line in lines] == objects
    path = tmp_path / "texts.jsonl"
    path.write_text(json.dumps({"id": 1, "text": "the teacher found her book"}) + "\n")
    assert elman("classify", classifier, path, "--json").json[0]["label"] == "good"
    empty = elman("classify", classifier, "--json", stdin="").ok()
    assert (empty.json, empty.err) == ([], "· there is no line to read\n")


def test_the_column_of_texts_is_that_of_training(elman: Elman, tmp_path: Path) -> None:
    rows = [line.split("\t") for line in TOY_LABELLED.splitlines()]
    table, alone = tmp_path / "toy.csv", tmp_path / "alone.csv"
    table.write_text("label,remark\n" + "".join(f'{a},"{b}"\n' for a, b in rows))
    out = tmp_path / "run"
    columns = ("--column", "label", "--text-column", "remark")
    elman("train", "classifier", table, "--out", out, "--steps", 2, *columns, *SMALL).ok()
    alone.write_text("remark,written_by_a_person\ngood book," + "x" * 80 + "\n")
    assert [row["text"] for row in elman("classify", out, alone, "--json").json] == ["good book"]
    (tmp_path / "bad.txt").write_bytes(b"caf\xe9\n")
    refused = elman("classify", out, tmp_path / "bad.txt")
    assert refused.code == 1
    assert refused.out == ""  # no header above nothing
    wrong = elman("train", "classifier", table, "--column", "remark", *SMALL).error
    assert "hardly any label occurs twice" in wrong[0]
    assert "--text-column" in wrong[1]


def test_the_library_opens_it(classifier: Path, table: Path) -> None:
    handle = library.load(classifier, device="cpu")
    assert isinstance(handle, library.Classifier)
    assert handle.labels == ["bad", "good"]
    found = handle.classify("the teacher found her book")
    assert (found.label, found.probability) == ("good", found.probabilities["good"])
    assert handle.evaluate(table).accuracy > 0.9


def test_the_library_trains_any_task(table: Path, tmp_path: Path) -> None:
    handle = library.train_model(
        "classifier",
        table,
        out=tmp_path / "run",
        steps=3,
        device="cpu",
        settings={"model.hidden_size": 6, "data.test_fraction": 0.2},
    )
    assert isinstance(handle, library.Classifier)
    assert handle.run.config.data.test_fraction == 0.2


def test_a_classifier_is_no_tagger(classifier: Path, model: Path, elman: Elman) -> None:
    assert "is a classifier, not a tagger" in elman("tag", classifier, stdin="x").error[0]
    message, _ = elman("evaluate", model, "python-docs", "--confusion", "x.png").error
    assert "is a language model, which has no --confusion" in message


def test_cross_validation(
    table: Path, elman: Elman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # without --out, the folds are in a new folder below runs/
    settings = ("--folds", 2, "--steps", 30, *SMALL)
    result = elman("train", "classifier", table, *settings, "--json").ok()
    found = result.json
    assert len(found["folds"]) == 2
    expected = sum(fold["test_accuracy"] for fold in found["folds"]) / 2
    assert found["test_accuracy"] == pytest.approx(expected)
    out = Path(found["out"])
    assert out.parent == Path("runs")
    assert {path.name for path in out.iterdir()} == {"fold-1", "fold-2"}
    message, _ = elman("train", "classifier", table, "--folds", 2, "--test", table).error
    assert "tests on parts of DATA" in message


def test_folds_and_fractions_divide_the_data_fairly(table: Path) -> None:
    paths = (str(table),)
    parts = [split(LabelledData(train=paths, num_folds=4, fold=fold)) for fold in (1, 2, 3, 4)]
    tested = sorted(row for part in parts for row in part.test)
    assert tested == sorted([*parts[0].train, *parts[0].valid, *parts[0].test])
    for part in parts:
        assert len(part.train) + len(part.valid) + len(part.test) == 128
        assert abs(sum(label == "good" for _, label in part.test) - 16) <= 1
        assert abs(sum(label == "good" for _, label in part.valid) - len(part.valid) / 2) <= 1
    once, again, other = (
        split(LabelledData(train=paths, test_fraction=0.25, split_seed=seed)) for seed in (1, 1, 2)
    )
    assert once == again
    assert once.test != other.test
    assert len(once.test) == 32


def test_names_are_read_by_characters_and_weighed(elman: Elman, tmp_path: Path) -> None:
    folder = tmp_path / "names"
    folder.mkdir()
    (folder / "Czech.txt").write_text("Novák\nDvořák\nČerný\nHorák\n" * 10)
    (folder / "Irish.txt").write_text("O'Neill\nO'Brien\n" * 2)
    (folder / "Greek.txt").write_text("Pappas\nKosta\n" * 2)
    result = elman(
        *("train", "classifier", folder, "--out", tmp_path / "run", "--steps", 5, *SMALL)
    ).ok()
    assert "chars, " in result.err
    assert "rare labels weigh more" in result.err
    assert "balanced accuracy" in result.err.partition("validation after")[2].partition(",")[0]


def test_what_is_wrong_with_the_data_is_said(table: Path, elman: Elman, tmp_path: Path) -> None:
    one = tmp_path / "one.tsv"
    one.write_text("same\ta text\nsame\tanother text\n")
    assert "has the label 'same'" in elman("train", "classifier", one).error[0]
    assert "a classifier needs training data" in elman("train", "classifier").error[0]
    message, hint = elman("train", "classifier", table, "--column", "label").error
    assert "no column called 'label'" in message
    assert hint
