"""Classifiers of pairs of texts, as a user types it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import elman as library
from elman.testing import TOY_LABELLED, TOY_PAIRS

Elman = Callable[..., Any]
SMALL = (
    *("--set", "model.hidden_size=12", "--set", "model.embedding_size=12"),
    *("--set", "model.joint_size=12", "--set", "model.dropout_output=0.1"),
    *("--set", "model.dropout_input=0", "--set", "model.dropout_embedding=0"),
    *("--set", "optimiser.learning_rate=0.02", "--set", "schedule.warmup_steps=0"),
    *("--seed", "1", "--device", "cpu"),
)
SAME = ("the student opened the book", "the book was opened")
OTHER = ("the student opened the laptop", "the laptop was not opened")


@pytest.fixture(scope="module")
def table(write: Callable[[str, str], Path]) -> Path:
    return write("pairs.tsv", TOY_PAIRS)


@pytest.fixture(scope="module")
def run(table: Path, elman: Elman) -> Path:
    out = table.parent / "pairs"
    options = ("--second-column", "second", "--steps", 40, "--out", out, *SMALL)
    result = elman("train", "classifier", table, "--test", table, *options).ok()
    assert "texts in column first and second (2 labels: other, same)" in result.err
    assert "pairs of texts (" in result.err
    return out


def test_evaluate_info_and_card(run: Path, table: Path, elman: Elman) -> None:
    found = elman("evaluate", run, table, "--json").json
    assert found["accuracy"] > 0.9
    assert found["texts"] == 128
    assert "a classifier of pairs of texts with 2 labels over" in elman("info", run).out
    assert "A classifier of pairs of texts with 2 labels (other, same)" in (
        (run / "card.md").read_text()
    )


def test_label_new_pairs(run: Path, elman: Elman, tmp_path: Path) -> None:
    lines = "".join(f"{first}\t{second}\n" for first, second in (SAME, OTHER))
    rows = [line.split("\t") for line in elman("classify", run, stdin=lines).out.splitlines()]
    assert rows[0] == ["label", "probability", "text", "second"]
    assert [row[0] for row in rows[1:]] == ["same", "other"]
    assert tuple(rows[1][2:]) == SAME
    objects = elman("classify", run, "--json", stdin=lines).json
    assert (objects[1]["text"], objects[1]["second"]) == OTHER
    path = tmp_path / "new.jsonl"
    path.write_text(json.dumps({"first": SAME[0], "second": SAME[1]}) + "\n")
    assert elman("classify", run, path, "--json").json[0]["label"] == "same"
    path = tmp_path / "new.csv"
    path.write_text(f"a,b\n{OTHER[0]},{OTHER[1]}\n")
    columns = ("--text-column", "a", "--second-column", "b")
    assert elman("classify", run, path, *columns, "--json").json[0]["label"] == "other"


def test_the_library_and_the_server_take_pairs(run: Path) -> None:
    handle = library.load(run, device="cpu")
    assert handle.takes_pairs
    found = handle.classify(*SAME)
    assert found.label == "same"
    assert [one.label for one in handle.classify_all([SAME, OTHER])] == ["same", "other"]
    route = next(route for route in handle.task.routes if route.name == "classify")
    assert route.answer(handle, "\t".join(SAME)) == found


def test_wrong_pairs_are_sentences(run: Path, table: Path, elman: Elman, tmp_path: Path) -> None:
    message, hint = elman("classify", run, stdin="one text\n").error
    assert "labels pairs of texts, and got 1 text" in message
    assert "tab" in hint
    single = tmp_path / "single.tsv"
    single.write_text(TOY_LABELLED)
    refused = elman("train", "classifier", single, "--set", "model.joint_size=9")
    assert "model.joint_size" in refused.error[0]
    names = tmp_path / "names"
    names.mkdir()
    for label in ("a", "b"):
        (names / f"{label}.txt").write_text("x\ny\n")
    message, _ = elman("train", "classifier", names, "--second-column", "2").error
    assert "without columns" in message
    unknown = elman("train", "classifier", table, "--second-column", "third")
    assert "no column called 'third'" in unknown.error[0]


def test_pairs_with_pretrained_vectors(table: Path, tmp_path: Path, elman: Elman) -> None:
    vectors = tmp_path / "toy.vec"
    vectors.write_text("3 2\nthe 1 2\nbook 3 4\nnot -1 1\n")
    options = ("--second-column", "second", "--embeddings", vectors, "--steps", 2, *SMALL)
    out = tmp_path / "run"
    elman("train", "classifier", table, *options, "--out", out).ok()
    assert elman("evaluate", out, table, "--json").json["texts"] == 128
