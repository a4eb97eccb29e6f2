"""ELMo as a user types it: train, go on, measure, explain, embed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import elman as library
from elman.testing import TOY_TEXT, TOY_TREEBANK

Elman = Callable[..., Any]
SMALL = (
    *("--set", "model.hidden_size=24", "--set", "model.character_cnn.filters=[4,8]"),
    *("--set", "training.batch_size=16", "--set", "optimiser.learning_rate=0.02"),
    *("--set", "schedule.kind=constant", "--set", "schedule.warmup_steps=0"),
    *("--set", "model.dropout=0", "--set", "model.head.num_samples=30"),
    *("--seed", "1", "--device", "cpu"),
)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("elmo") / "toy.txt"
    path.write_text(TOY_TEXT)
    return path


@pytest.fixture(scope="module")
def trained(text: Path, elman: Elman) -> Path:
    out = text.parent / "run"
    result = elman("train", "elmo", text, "--test", text, "--out", out, "--steps", 60, *SMALL)
    assert result.code == 0, result.err
    for name in ("validation forward perplexity", "test backward perplexity"):
        assert name in result.out
    return out


def test_the_run_tells_both_directions(trained: Path) -> None:
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    summary = lines[-1]["summary"]
    forward, backward = summary["forward_perplexity"], summary["backward_perplexity"]
    assert summary["perplexity"] == pytest.approx((forward * backward) ** 0.5)
    assert summary["perplexity"] < 6
    assert "forward" in (trained / "card.md").read_text()


def test_evaluate_and_info(trained: Path, text: Path, elman: Elman) -> None:
    found = elman("evaluate", trained, text, "--json").json
    test = json.loads((trained / "metrics.jsonl").read_text().splitlines()[-1])["summary"]
    assert found["perplexity"] == pytest.approx(test["test_perplexity"])
    assert found["tokens"] == len(TOY_TEXT.split()) + len(TOY_TEXT.splitlines())
    assert found["oov"] == 0
    about = elman("info", trained).out
    assert "3 layers of 48 numbers" in about
    assert "backward perplexity" in about


def test_a_resumed_run_goes_through_the_same_losses(
    text: Path, tmp_path: Path, elman: Elman
) -> None:
    def losses(out: Path) -> list[float]:
        lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
        return [line["loss"] for line in lines if line["kind"] == "step"]

    settings = (*SMALL, "--set", "training.report_every=2", "--set", "model.dropout=0.1")
    for out, steps in ((tmp_path / "whole", 24), (tmp_path / "cut", 12)):
        assert elman("train", "elmo", text, "--out", out, "--steps", steps, *settings).code == 0
    again = elman("train", "elmo", "--out", tmp_path / "cut", "--steps", 24, "--resume")
    assert again.code == 0, again.err
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")


def test_sentences_of_a_treebank_as_words(tmp_path: Path, elman: Elman) -> None:
    path = tmp_path / "toy.conllu"
    path.write_text(TOY_TREEBANK)
    assert elman("data", "words", path).out == TOY_TEXT
    path = tmp_path / "plain.txt"
    path.write_text("Well, he can't. (No!)\n\nSo what?\n")
    assert elman("data", "words", path).out == "Well , he can't . ( No ! )\nSo what ?\n"


def test_text_that_is_not_tokenised_is_cut_into_words(tmp_path: Path, elman: Elman) -> None:
    path = tmp_path / "plain.txt"
    path.write_text(TOY_TEXT.replace(" .", "."))
    out = tmp_path / "run"
    result = elman("train", "elmo", path, "--out", out, "--steps", 2, *SMALL)
    assert result.code == 0, result.err
    tokenizer = json.loads((out / "tokenizer.json").read_text())
    assert "paper" in tokenizer["model"]["vocab"]
    assert "paper." not in tokenizer["model"]["vocab"]


def test_what_cannot_be_is_told(text: Path, tmp_path: Path, elman: Elman) -> None:
    out = ("--out", tmp_path / "none")
    result = elman("train", "elmo", text, *out, "--set", "tokenizer.kind=char")
    assert (result.code, result.error[0]) == (
        2,
        "ELMo reads words, and a char tokenizer gives none",
    )
    short = tmp_path / "short.txt"
    short.write_text("one line .\n" * 3)
    result = elman("train", "elmo", short, *out)
    assert result.code == 2
    assert "too little text" in result.error[0]
    damaged = tmp_path / "damaged.txt"
    damaged.write_bytes(b"a fine line .\nbr\xfcken\n" * 30)
    result = elman("train", "elmo", damaged, *out)
    assert result.code == 1
    assert "line 2" in result.error[0]


def test_the_library_opens_it(trained: Path) -> None:
    handle = library.load(trained)
    assert repr(handle).endswith("3 layers of 48)")
