"""N-gram models through the same commands as every other model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elman.testing import TOY_TEXT

Elman = Callable[..., Any]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "toy.txt"
    path.write_text(TOY_TEXT)
    return path


@pytest.fixture
def trigrams(elman: Elman, text: Path, tmp_path: Path) -> Path:
    out = tmp_path / "trigrams"
    assert elman("train", "ngram", text, "--order", 3, "--valid", text, "--out", out).code == 0
    return out


def test_trains_and_measures(elman: Elman, text: Path, trigrams: Path) -> None:
    told = elman("info", trigrams, "--json").json
    assert told["kind"] == "ngram"
    assert [row["order"] for row in told["ngrams"]] == [1, 2, 3]
    assert told["unseen"][2]["unseen_ngrams"] == 0  # the validation text is the training text
    measured = elman("evaluate", trigrams, text, "--json").json
    assert measured["perplexity"] == pytest.approx(told["summary"]["perplexity"], rel=1e-4)
    assert "3-grams" in elman("info", trigrams).out


def test_next_score_and_generate(elman: Elman, trigrams: Path) -> None:
    words = elman("next", trigrams, "the", "-k", 1000, "--json").json
    assert sum(word["probability"] for word in words) == pytest.approx(1, abs=1e-4)
    scored = elman("score", trigrams, "--unit", "word", stdin="the cat sat\n")
    assert scored.code == 0
    once, again = (
        elman("generate", trigrams, "the", "--seed", 1, "--max-tokens", 9) for _ in range(2)
    )
    assert once.out == again.out != ""


def test_mixes_with_a_network(elman: Elman, model: Path, text: Path, tmp_path: Path) -> None:
    counted = tmp_path / "counted"
    tokens = f"tokenizer.file={model / 'tokenizer.json'}"
    assert elman("train", "ngram", text, "--set", tokens, "--out", counted).code == 0
    mixed = elman("evaluate", f"0.5*{model}+0.5*{counted}", text, "--json").json["perplexity"]
    alone = [elman("evaluate", m, text, "--json").json["perplexity"] for m in (model, counted)]
    assert min(alone) * 0.9 < mixed < max(alone)


def test_an_arpa_file_is_a_model(elman: Elman, shared_data: Path) -> None:
    arpa = shared_data / "kenlm" / "test.arpa"
    assert elman("info", arpa, "--json").json["kind"] == "ngram"
    assert elman("next", arpa, "looking on", "-k", 1, "--json").json[0]["token"] == "a"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--order", "0"), "order"),
        (("--smoothing", "kneser"), "kneser-ney"),
        (("--set", "modle.order=3"), "model"),
        (("--memory", "lots"), "amount of memory"),
    ],
)
def test_bad_settings_are_sentences(
    elman: Elman, text: Path, tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    found = elman("train", "ngram", text, "--out", tmp_path / "x", *arguments)
    assert found.code == 2
    assert says in " ".join(found.error)


def test_a_folder_is_not_overwritten(elman: Elman, text: Path, trigrams: Path) -> None:
    found = elman("train", "ngram", text, "--out", trigrams)
    assert found.code == 2
    assert "already holds a run" in found.error[0]
