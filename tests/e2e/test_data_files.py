"""Text in tables, at addresses, from stdin and in Python gives the model of the same plain text."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

import elman as library
from elman.base.cache import cache_folder
from elman.serve.http.model_card import model_card
from elman.testing import TOY_TEXT

Elman = Callable[..., Any]
LINES = TOY_TEXT.splitlines()[:200]


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    path = tmp_path / "plain.txt"
    path.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return path


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    writer = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "rows.parquet"
    writer.write_table(pyarrow.table({"body": LINES, "n": range(len(LINES))}), path)
    return path


@pytest.fixture
def jsonl(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    rows = [json.dumps({"text": line}) + "\n" for line in LINES]
    path.write_text("".join(rows), encoding="utf-8")
    return path


def test_every_source_gives_the_same_counts(
    elman: Elman, plain: Path, jsonl: Path, parquet: Path, tmp_path: Path
) -> None:
    fsspec.filesystem("memory").pipe("/rows.jsonl", jsonl.read_bytes())
    sheet = tmp_path / "sheet.csv"
    with sheet.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.writer(file, delimiter=";")
        writer.writerows([("n", "body"), *enumerate(LINES)])
    sources: list[tuple[Any, ...]] = [
        (plain,),
        (sheet, "--column", "body"),
        (jsonl,),
        (parquet, "--column", "body"),
        ("memory://rows.jsonl",),
        ("-",),
    ]
    for number, source in enumerate(sources):
        out = tmp_path / str(number)
        stdin = plain.read_text(encoding="utf-8") if "-" in source else ""
        elman("train", "ngram", *source, "--order", 2, "--out", out, stdin=stdin).ok()
    run = tmp_path / "0"
    counts = [elman("info", tmp_path / str(n), "--json").json["ngrams"] for n in range(6)]
    assert counts == [counts[0]] * 6
    expected = elman("evaluate", run, plain, "--json").json["perplexity"]
    for data in ((jsonl,), (parquet, "--column", "body"), ("memory://rows.jsonl",)):
        assert elman("evaluate", run, *data, "--json").json["perplexity"] == expected
    assert library.load(run).evaluate(iter(LINES)).perplexity == expected
    checked = elman("data", "check", parquet, "--column", "body", "--json").json
    assert checked["lines"] == len(LINES)


def test_a_network_learns_from_rows_in_python_and_resumes(
    elman: Elman, jsonl: Path, tmp_path: Path
) -> None:
    rows = [{"body": line} for line in LINES]
    small = {"model.hidden_size": 8, "model.embedding_size": 8, "training.sample_length": 0}
    how: dict[str, Any] = {"steps": 2, "settings": small, "progress": False}
    lm = library.train_lm(iter(rows), valid=rows[:20], column="body", out=tmp_path / "run", **how)
    assert lm.perplexity(LINES[0]) > 1
    resumed = elman("train", "lm", "--resume", "--out", tmp_path / "run", "--steps", 3)
    assert resumed.code == 0, resumed.err


def test_mistakes_are_explained(elman: Elman, jsonl: Path) -> None:
    said = elman("train", "lm", jsonl, "--column", "body")
    assert said.code == 2
    assert said.error == (
        f"{jsonl}, line 1 has no column 'body'",
        "choose one of: text; name it with --column",
    )
    sheet = jsonl.with_name("sheet.csv")
    sheet.write_text("rating,comment\n5,good\n", encoding="utf-8")
    said = elman("train", "ngram", sheet, "--out", jsonl.with_name("plain"))
    assert f"{sheet} is read as plain text: --column NAME reads a table" in said.err
    said = elman("evaluate", jsonl.with_name("plain"), sheet).ok()
    assert f"{sheet} is read as plain text: --column NAME reads a table" in said.err
    message, hint = elman("evaluate", jsonl.with_name("plain"), sheet, "--column").error
    assert (message, hint) == (
        "option '--column' requires an argument",
        "see --help of the command",
    )
    plain = jsonl.with_name("plain.log")
    plain.write_text("some text\n", encoding="utf-8")
    message, hint = elman("train", "lm", plain, "--column", "body").error
    assert "none of the files is a table" in message
    assert ".csv" in hint
    said = elman("train", "lm", "x" * 300 + "\nmore")
    assert "is a text, not the name of a file" in said.error[0]
    with pytest.raises(library.UsageError, match="is a text, not the name of a file"):
        library.train_lm(["The cat sat on the mat.\nAnd so on.\n"])


def test_converted_texts_are_called_by_the_names_that_were_given(
    elman: Elman, small: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by those of their copies in the cache folder."""
    monkeypatch.chdir(tmp_path)
    text = "".join(f"{line} à\n" for line in LINES)
    Path("b.txt").write_text(text, encoding="latin-1")
    rows = "".join(f"{number};{line}\n" for number, line in enumerate(text.splitlines()))
    Path("table.csv").write_text(f"n;body\n{rows}", encoding="latin-1")
    cache = str(cache_folder())
    converted = ("b.txt", "--encoding", "latin-1")
    column = ("table.csv", "--encoding", "latin-1", "--column")

    refused = elman("train", "classifier", *converted)
    assert refused.error[0] == "b.txt has no column of labels"
    for source, stdin, name in (
        (converted, "", "b.txt"),
        ((*column, "body"), "", "table.csv"),
        (("-",), text, "stdin"),
    ):
        first = elman("data", "check", *source, stdin=stdin).ok().out.splitlines()[0]
        assert first.split() == ["files", name]
        run = f"runs/{name}"
        counted = ("train", "ngram", *source, "--order", 2, "--out", run)
        elman(*counted, stdin=stdin).ok()
        assert f"| text | {name}," in Path(run, "card.md").read_text(encoding="utf-8")
        about = elman("info", run).ok().out
        assert f" {name}\n" in about
        assert cache not in about
        config = json.loads(Path(run, "config.json").read_text(encoding="utf-8"))
        assert config["data"]["train"][0].startswith(cache)
        card = model_card(library.load(run))
        assert card.trained_on == [name]
    compared = elman("compare", "runs").ok().out
    assert all(f" {name} " in compared for name in ("b.txt", "table.csv", "stdin"))
    for command in (("score", "runs/b.txt"), ("evaluate", "runs/b.txt"), ("data", "check")):
        refused = elman(*command, *column, "nope")
        assert refused.error[0] == "table.csv has no column 'nope'"

    elman("train", "lm", "-", "--out", "lm", *small, stdin=text).ok()
    about = elman("info", "lm").ok().out
    assert "stdin\n" in about
    assert cache not in about
    assert "| text | stdin |" in Path("lm/card.md").read_text(encoding="utf-8")
    elman("index", *converted, "--out", "index").ok()
    found = elman("find", "index", LINES[3]).ok().out
    assert "b.txt:4 " in found
    assert cache not in found
