"""A language model that is given a label, as a user types it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import elman as library

Elman = Callable[..., Any]

SMALL = (
    *("--set", "model.decoder.hidden_size=32", "--set", "model.decoder.embedding_size=8"),
    *("--set", "model.label_size=6", "--set", "model.decoder.dropout_output=0"),
    *("--set", "optimiser.learning_rate=0.03", "--set", "schedule.warmup_steps=0"),
    *("--set", "training.batch_size=16", "--set", "training.sample_length=10", "--seed", "1"),
)


@pytest.fixture(scope="session")
def names(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two languages that share no letter, and a blank line in one of them."""
    folder = tmp_path_factory.mktemp("names")
    (folder / "Upper.txt").write_text("ABBA\nABA\nBABA\n\n" * 12, encoding="utf-8")
    (folder / "Lower.txt").write_text("cdd\ncdcd\nddc\n" * 12, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def run(elman: Elman, names: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "names"
    result = elman(
        "train",
        "conditional",
        names,
        "--out",
        out,
        "--steps",
        60,
        "--test",
        names,
        *SMALL,
        "--json",
    ).ok()
    assert "65 texts with 2 labels" in result.err
    assert json.loads(result.out)["test_perplexity"] < 2.5
    assert "on 10% of the texts, drawn at random" in (out / "card.md").read_text()
    return out


@pytest.mark.parametrize("how", [("--seed", 1), ("--beam", 3), ("--greedy",)])
def test_texts_are_of_their_label(elman: Elman, run: Path, how: tuple[Any, ...]) -> None:
    for label, letters in (("Upper", "AB"), ("Lower", "cd")):
        number = 1 if "--greedy" in how else 3
        result = elman(
            "generate", run, "--label", label, "--num-samples", number, *how, "--json"
        ).ok()
        texts = [each["text"] for each in result.json]
        assert len(texts) == number
        for text in texts:
            assert text
            assert set(text) <= set(letters)


def test_whatever_a_language_model_can_do(elman: Elman, run: Path, names: Path) -> None:
    first, *_ = elman("next", run, "A", "--label", "Upper", "--json").json
    assert first["token"] == "B"
    arguments = ("--unit", "line", "--json")
    likely, unlikely = (
        elman("score", run, "--label", label, *arguments, stdin="ABBA\n").json[0]["surprisal"]
        for label in ("Upper", "Lower")
    )
    assert likely + 10 < unlikely
    found = elman("evaluate", run, names / "Lower.txt", "--json").json
    assert found["texts"] == 36
    assert found["perplexity"] < 2.5
    assert "2 labels" in elman("info", run).out


def test_mistakes_have_sentences(elman: Elman, run: Path, model: Path, tmp_path: Path) -> None:
    message, hint = elman("generate", run, "--label", "Uper").error
    assert "has no label 'Uper'" in message
    assert "Upper" in hint
    message, hint = elman("generate", run).error
    assert "takes a label" in message
    assert "Lower" in hint
    message, _ = elman("generate", model, "--label", "Upper").error
    assert "takes no label" in message
    other = tmp_path / "Greek.txt"
    other.write_text("abc\n", encoding="utf-8")
    message, _ = elman("evaluate", run, other).error
    assert message == f"{other}: the model has no label 'Greek'"


def test_from_python(run: Path) -> None:
    conditional = library.load(run)
    assert conditional.labels == ("Lower", "Upper")
    lm = conditional.given("Lower")
    assert lm.perplexity("cdd") < lm.perplexity("ABA")


def test_one_label_is_none(elman: Elman, names: Path, tmp_path: Path) -> None:
    refused = elman("train", "conditional", names / "Upper.txt", "--out", tmp_path / "run")
    assert refused.error[0] == "all texts have the label 'Upper', the name of their file"
    assert not (tmp_path / "run").exists()
