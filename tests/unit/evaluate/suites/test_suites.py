from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import zstandard
from torch import Tensor

from elman.base.errors import ElmanError, UsageError
from elman.evaluate.suites import run_suite
from elman.evaluate.suites.syntaxgym import Formula
from elman.nn.state import State
from elman.tokens import characters, pretokenized
from elman.tokens.fitting import Fitting
from elman.tokens.tokenizer import Tokenizer


class Unigrams:
    """Every character has a probability of its own, whatever came before."""

    def __init__(self, tokenizer: Tokenizer, likely: Iterable[str]) -> None:
        self.vocab_size = tokenizer.vocab_size
        weights = torch.ones(self.vocab_size)
        for character in likely:
            token = tokenizer.id(character)
            assert token is not None
            weights[token] = 5.0
        self.logprobs_V = (weights / weights.sum()).log()

    def initial_state(self, batch_size: int) -> State:
        return State({"none": torch.zeros(batch_size, 1)})

    def step(self, tokens_B: Tensor, state: State) -> tuple[Tensor, State]:
        return self.logprobs_V.expand(len(tokens_B), -1), state

    def logprobs(self, tokens_BT: Tensor, targets_BT: Tensor, state: State) -> tuple[Tensor, State]:
        return self.logprobs_V[targets_BT], state


@pytest.fixture
def tokenizer() -> Tokenizer:
    return Tokenizer(characters.build("abc ."))


def write_pairs(path: Path, pairs: list[tuple[str, str]]) -> Path:
    lines = [json.dumps({"sentence_good": good, "sentence_bad": bad}) for good, bad in pairs]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_blimp_counts_pairs_whose_good_sentence_is_likelier(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    one = write_pairs(tmp_path / "one.jsonl", [("a a.", "b a."), ("b", "a"), ("aa", "ab")])
    # As likely as each other, and the same to a model that knows neither word.
    two = write_pairs(tmp_path / "two.jsonl", [("b", "c"), ("x", "y")])
    report = run_suite("blimp", Unigrams(tokenizer, "a"), tokenizer, [one, two])
    assert [(p.name, p.items) for p in report.parts] == [("one", 3), ("two", 2)]
    # Ties count as half, and are told apart.
    assert [p.accuracy for p in report.parts] == pytest.approx([2 / 3, 0.5])
    assert [p.ties for p in report.parts] == [0, 2]
    assert [p.accuracy_without_ties for p in report.parts] == [pytest.approx(2 / 3), None]
    assert [(p.unknown, p.tokens) for p in report.parts] == [(0, 14), (2, 4)]
    assert report.accuracy == pytest.approx(7 / 12)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_compressed_files_are_read(tmp_path: Path, tokenizer: Tokenizer, suffix: str) -> None:
    plain = write_pairs(tmp_path / "one.jsonl", [("a", "b"), ("b", "a")])
    gym = tmp_path / "gym.json"
    gym.write_text(json.dumps(suite(good=["a", "a"], bad=["a", "b"])))
    pack = gzip.compress if suffix == ".gz" else zstandard.ZstdCompressor().compress
    for name, path in (("blimp", plain), ("syntaxgym", gym)):
        packed = path.with_name(path.name + suffix)
        packed.write_bytes(pack(path.read_bytes()))
        model = Unigrams(tokenizer, "a")
        assert run_suite(name, model, tokenizer, [packed]) == run_suite(
            name, model, tokenizer, [path]
        )


def test_a_suite_is_read_like_the_training_text(tmp_path: Path) -> None:
    """A full stop made every sentence of BLiMP end with an unknown word, and every pair a tie."""
    words = Tokenizer(pretokenized.build(["the", "cat", "cats", "sleeps"]))
    path = write_pairs(tmp_path / "one.jsonl", [("The cat sleeps.", "The cats sleeps.")])
    model = Unigrams(words, ["cat"])
    as_is = run_suite("blimp", model, words, [path]).parts[0]
    assert (as_is.unknown, as_is.reads_as) == (4, "")
    fitted = run_suite("blimp", model, words, [path], fit=Fitting(words).tokenizer_for).parts[0]
    assert (fitted.unknown, fitted.tokens, fitted.accuracy) == (0, 6, 1.0)
    assert fitted.reads_as == "lower-cased, punctuation removed"


@pytest.mark.parametrize("content", ["", "{}\n", "no json\n", '["a", "b"]\n'])
def test_a_file_that_is_no_pairs_is_refused(
    tmp_path: Path, tokenizer: Tokenizer, content: str
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    with pytest.raises(ElmanError, match="is not a file of the suite blimp"):
        run_suite("blimp", Unigrams(tokenizer, ""), tokenizer, [path])


def test_an_unknown_suite_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(UsageError, match="suite"):
        run_suite("blimb", Unigrams(tokenizer, ""), tokenizer, [])


def suite(**conditions: list[str]) -> dict[str, Any]:
    return {
        "meta": {"name": "toy", "metric": "sum"},
        "predictions": [{"type": "formula", "formula": "[(2;%good%) < (2;%bad%)]"}],
        "items": [
            {
                "item_number": 1,
                "conditions": [
                    {
                        "condition_name": name,
                        "regions": [
                            {"region_number": n, "content": content}
                            for n, content in enumerate(regions, start=1)
                        ],
                    }
                    for name, regions in conditions.items()
                ],
            }
        ],
    }


@pytest.mark.parametrize(
    ("good", "bad", "accuracy"),
    [
        (["c", "a", "c"], ["c", "b", "c"], 1.0),
        (["c", "b", "c"], ["c", "a", "c"], 0.0),
        (["b", "a", "b"], ["a", "a", "a"], 0.5),  # other regions do not count: a tie
        (["c", "", "c"], ["c", "a", "c"], 1.0),  # an empty region surprises nobody
    ],
)
def test_syntaxgym_compares_regions(
    tmp_path: Path, tokenizer: Tokenizer, good: list[str], bad: list[str], accuracy: float
) -> None:
    path = tmp_path / "toy.json"
    path.write_text(json.dumps(suite(good=good, bad=bad)))
    report = run_suite("syntaxgym", Unigrams(tokenizer, "a"), tokenizer, [path])
    assert [(p.name, p.accuracy, p.items) for p in report.parts] == [("toy", accuracy, 1)]


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        ("(1;%x%) < (2;%x%)", True),
        ("[(1;%x%) > (2;%x%)] | [(1;%x%) = 1]", True),
        ("[(1;%x%) < (2;%x%)] & [(*;%x%) < 3]", False),
        ("[(2;%x%) - (1;%x%)] > [(1;%x%) - 0.5]", True),
        ("(2;%x%) - (1;%x%) - 1", 0.0),
        ("1 + 2 * (2;%x%)", 5.0),
        ("(2 + 1) * (2;%x%)", 6.0),
    ],
)
def test_formulas(formula: str, value: float) -> None:
    assert Formula(formula)({("1", "x"): 1.0, ("2", "x"): 2.0, ("*", "x"): 3.0}) == value


@pytest.mark.parametrize("formula", ["", "(1;%x%) <", "[(1;%x%)", "import os", "1 2", "(9;%x%)"])
def test_formulas_that_make_no_sense_are_refused(formula: str) -> None:
    with pytest.raises(ElmanError, match="prediction"):
        Formula(formula)({("1", "x"): 1.0})


def test_real_files_are_read(shared_data: Path, tokenizer: Tokenizer) -> None:
    model = Unigrams(tokenizer, "a")
    report = run_suite(
        "syntaxgym", model, tokenizer, sorted((shared_data / "syntaxgym_sample").glob("*.json"))
    )
    assert [part.items for part in report.parts] == [28, 19, 23]
    report = run_suite(
        "blimp", model, tokenizer, [shared_data / "blimp_sample" / "wh_island.jsonl"]
    )
    assert report.parts[0].items == 1000
    assert math.isfinite(report.accuracy)
