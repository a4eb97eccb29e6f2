"""From tagged files to a tagger and back, as a user types it."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import elman as library
from elman.base.errors import ElmanError
from elman.recipes.resolve import resolve
from elman.recipes.run import train
from elman.testing import TOY_TREEBANK

Elman = Callable[..., Any]
Reports = Callable[[Path], list[dict[str, Any]]]
SMALL = (
    *("--set", "model.hidden_size=16", "--set", "model.embedding_size=16"),
    *("--set", "model.character_size=8", "--set", "optimiser.learning_rate=0.02"),
    *("--set", "model.dropout_input=0", "--set", "model.dropout_hidden=0"),
    *("--set", "model.dropout_output=0", "--set", "training.batch_size=8"),
    *("--set", "schedule.warmup_steps=0", "--seed", "1", "--device", "cpu"),
)
ENTITIES = "".join(
    f"{name} I-PER\nlives O\nin O\n{place} I-LOC\n{also}. O\n\n"
    for name, place, also in zip(
        ["Ann", "Bob", "Carl", "Dora"] * 15,
        ["Rome", "Oslo", "Bern"] * 20,
        ["", "City I-LOC\n", ""] * 20,
        strict=True,
    )
)


@pytest.fixture(scope="module")
def treebank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("treebank") / "toy.conllu.gz"
    path.write_bytes(gzip.compress(TOY_TREEBANK.encode()))
    return path


@pytest.fixture(scope="module")
def tagger(treebank: Path, elman: Elman) -> Path:
    out = treebank.parent / "tagger"
    result = elman(
        *("train", "tagger", treebank, "--test", treebank, "--out", out, "--steps", 40, *SMALL)
    ).ok()
    assert "test accuracy" in result.out
    assert "perplexity" not in result.out + result.err
    return out


def test_the_run_tells_its_metric_by_name(tagger: Path, reports: Reports) -> None:
    lines = reports(tagger)
    summary = lines[-1]["summary"]
    assert summary["accuracy"] == lines[-1]["valid_accuracy"] > 0.5
    assert summary["test_accuracy"] > 0.9
    assert summary["test_tokens"] > 500
    card = (tagger / "card.md").read_text()
    assert f"accuracy {summary['accuracy']:.2%}" in card
    assert "A tagger of 5 labels" in card


def test_evaluate_and_info(tagger: Path, treebank: Path, elman: Elman) -> None:
    found = elman("evaluate", tagger, treebank, "--json").json
    assert found["accuracy"] > 0.9
    assert found["labels"]["DET"]["f1"] == pytest.approx(1.0, abs=0.1)
    assert found["f1"] is None
    shown = elman("evaluate", tagger, treebank)
    assert "accuracy" in shown.out
    assert "DET" in shown.out
    about = elman("info", tagger)
    assert "a tagger of 5 labels" in about.out
    assert "validation" in about.out
    assert elman("info", tagger, "--json").json["labels"][0] == "ADJ"


def test_conllu_comes_back_with_its_tags_alone_changed(
    tagger: Path, elman: Elman, tmp_path: Path
) -> None:
    odd = (
        "# text = the New York book\n1-2\tthenew\t_\t_\t_\t_\t_\t_\t_\t_\n"
        "1\tthe\tthe\t_\tDT\t_\t0\troot\t_\t_\n2\tNew York\t_\t_\t_\t_\t1\tx\t_\t_\n"
        "2.1\tgone\t_\tX\t_\t_\t_\t_\t_\t_\n\n# nothing here\n\n"
    )
    path = tmp_path / "odd.conllu"
    path.write_text(odd)
    result = elman("tag", tagger, path).ok()
    old, new = odd.split("\n"), result.out.split("\n")
    assert len(old) == len(new)
    changed = [(a.split("\t"), b.split("\t")) for a, b in zip(old, new, strict=True) if a != b]
    assert [b[0] for _, b in changed] == ["1", "2"]
    assert all(a[:3] + a[4:] == b[:3] + b[4:] for a, b in changed)
    assert changed[0][1][3] == "DET"
    assert elman("tag", tagger, "-", stdin=odd).out == result.out


def test_text_is_tagged_word_by_word(tagger: Path, elman: Elman) -> None:
    result = elman("tag", tagger, stdin="the teacher found her book.\n\n").ok()
    rows = [line.split("\t") for line in result.out.split("\n")]
    assert [row[0] for row in rows] == ["the", "teacher", "found", "her", "book", ".", "", "", ""]
    assert rows[0][1] == "DET"
    message, hint = elman("tag", tagger, "--format", "colums", stdin="x").error
    assert "no format called 'colums'" in message
    assert "columns" in hint
    listed = elman("tag", tagger, "--json", stdin="the book\n").json
    assert listed[0]["words"] == ["the", "book"]
    assert len(listed[0]["tags"]) == 2
    message, _ = elman("tag", tagger, "--column", "xpos", stdin="the pupil sleeps\n").error
    assert message == "--column has no effect on plain text"
    empty = elman("tag", tagger, "--json", stdin="").ok()
    assert (empty.json, empty.err) == ([], "· there is no line to read\n")


def test_the_library_opens_it(tagger: Path, treebank: Path) -> None:
    handle = library.load(tagger, device="cpu")
    assert isinstance(handle, library.Tagger)
    assert handle.tag("the book") == handle.tag(["the", "book"])
    assert handle.tag("the book")[0] == ("the", "DET")
    assert handle.tag("") == []
    (first, _) = handle.probabilities("the book")
    assert sum(first.values()) == pytest.approx(1.0)
    assert max(first, key=first.__getitem__) == "DET"
    assert handle.evaluate(treebank).accuracy > 0.9


def test_tags_of_another_kind_are_not_measured(tagger: Path, elman: Elman, tmp_path: Path) -> None:
    other = tmp_path / "other.tsv"
    other.write_text("the\tx\nbook\ty\n")
    result = elman("evaluate", tagger, other)
    assert result.code == 1
    assert "knows none of the tags there" in result.error[0]


def test_a_tagger_is_no_language_model(tagger: Path, model: Path, elman: Elman) -> None:
    message, hint = elman("generate", tagger, "x").error
    assert "is a tagger, not a language model" in message
    assert hint == f"it is for `elman tag {tagger} FILE`; `elman train lm` makes a language model"
    message, hint = elman("tag", model, stdin="x").error
    assert "is a language model, not a tagger" in message
    assert hint == f"it is for `elman generate {model} PROMPT`; `elman train tagger` makes a tagger"
    assert "not a language model" in elman("evaluate", f"{tagger}+{model}", "x").error[0]


def test_entities_with_a_crf(elman: Elman, tmp_path: Path) -> None:
    path = tmp_path / "entities.conll"
    path.write_text("-DOCSTART- O\n\n" + ENTITIES)
    out = tmp_path / "run"
    result = elman(
        "train", "tagger", path, "--test", path, "--out", out, "--steps", 40, *SMALL
    ).ok()
    assert "entities in IOB1" in result.err
    assert "crf output" in result.err
    assert "test f1" in result.out
    found = elman("evaluate", out, path, "--json").json
    assert found["f1"] > 0.9
    assert set(found["labels"]) == {"LOC", "PER"}
    written = elman("tag", out, path).out
    assert written.startswith("-DOCSTART- O\n\n")
    assert "Ann I-PER\n" in written


def test_other_columns(treebank: Path, elman: Elman, tmp_path: Path) -> None:
    message, _ = elman("train", "tagger", treebank, "--column", "xpos", "--steps", 1).error
    assert "has a tag in the column xpos" in message
    message, hint = elman("train", "tagger", treebank, "--column", "upso", "--steps", 1).error
    assert "no column called 'upso'" in message
    assert "upos" in hint
    message, hint = elman("train", "tagger").error
    assert "a tagger needs training data" in message
    bad = tmp_path / "bad.conllu"
    bad.write_text("1\tonly\n\n")
    assert f"{bad}, line 1" in elman("train", "tagger", bad, "--steps", 1).error[0]


def test_a_run_is_not_resumed_with_other_data(treebank: Path, tmp_path: Path) -> None:
    text = tmp_path / "small.conllu"
    text.write_text(TOY_TREEBANK)
    settings = {
        "model": {"hidden_size": 8, "embedding_size": 8},
        "training.checkpoint_seconds": 0,
    }
    config = resolve("tagger", [str(text)], settings=settings, steps=3, device="cpu").config
    list(train(config, tmp_path / "run", device="cpu"))
    text.write_text(TOY_TREEBANK.replace("teacher", "mentor"))
    longer = replace(config, training=replace(config.training, steps=6))
    with pytest.raises(ElmanError, match="words or labels of the data have changed"):
        list(train(longer, tmp_path / "run", device="cpu", resume=True))
