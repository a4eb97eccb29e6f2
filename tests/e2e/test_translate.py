"""Training a translator and using it, as a user types it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from elman.nn.heads.softmax import Softmax
from elman.tasks.translation.handle import Translator
from elman.testing import TOY_TEXT

pytest.importorskip("sacrebleu")
Elman = Callable[..., Any]

SMALL = (
    *("--set", "model.decoder.hidden_size=48", "--set", "model.decoder.embedding_size=48"),
    *("--set", "model.decoder.dropout_input=0", "--set", "model.decoder.dropout_output=0"),
    *("--set", "model.decoder.dropout_hidden=0", "--set", "model.decoder.dropout_embedding=0"),
    *("--set", "tokenizer.kind=word", "--set", "tokenizer.min_count=1"),
    *("--set", "optimiser.learning_rate=0.01", "--set", "schedule.warmup_steps=0"),
    *("--set", "training.batch_size=32", "--set", "training.sample_length=10", "--seed", "1"),
)

LINE = "the pupil lost the laptop .\n"


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The toy corpus and its lines with the words turned round, in two files."""
    folder = tmp_path_factory.mktemp("pairs")
    lines = TOY_TEXT.splitlines()
    turned = [" ".join(line.split()[::-1]) for line in lines]
    source, target = folder / "toy.en", folder / "toy.ne"
    source.write_text("\n".join(lines) + "\n\n", encoding="utf-8")  # a blank line at the end
    target.write_text("\n".join(turned) + "\n\n", encoding="utf-8")
    return source, target


@pytest.fixture(scope="session")
def translator(elman: Elman, pairs: tuple[Path, Path]) -> Path:
    out = pairs[0].parent / "run"
    result = elman("train", "translator", *pairs, "--out", out, "--steps", 100, *SMALL, "--json",
                   "--valid", *pairs, "--test", *pairs).ok()  # fmt: skip
    assert "1 empty or too long ones left out" in result.err
    summary = json.loads(result.out)
    # What is seen in training is known by heart: this asks whether every part does its work.
    assert summary["test_bleu"] > 90
    assert summary["bleu"] > 90
    assert summary["test_perplexity"] < 3
    assert "BLEU" in (out / "card.md").read_text(encoding="utf-8")
    return out


def test_translates_line_by_line(
    elman: Elman, translator: Path, pairs: tuple[Path, Path], tmp_path: Path
) -> None:
    lines = "the student opened her book .\n\nthe old professor lost the exam paper .\n"
    (tmp_path / "some.en").write_text(lines, encoding="utf-8")
    expected = [". book her opened student the", "", ". paper exam the lost professor old the"]
    assert elman("translate", translator, tmp_path / "some.en").out.split("\n")[:3] == expected
    assert elman("translate", translator, stdin=lines).out.split("\n")[:3] == expected
    assert elman("translate", translator, "--greedy", stdin=lines).out.split("\n")[:3] == expected
    drawn = elman("translate", translator, "--temperature", 0.1, "--seed", 1, stdin=lines)
    assert drawn.out.split("\n")[:3] == expected


def test_n_best(elman: Elman, translator: Path) -> None:
    result = elman("translate", translator, "--n-best", 3, stdin=LINE)
    rows = [row.split("\t") for row in result.out.splitlines()]
    assert [row[:2] for row in rows] == [["1", "1"], ["1", "2"], ["1", "3"]]
    assert float(rows[0][2]) >= float(rows[1][2]) >= float(rows[2][2])
    assert rows[0][4] == ". laptop the lost pupil the"
    ((best, *_),) = elman(
        "translate", translator, "--json", stdin="the pupil lost the laptop .\n"
    ).json
    assert best["text"] == rows[0][4]
    assert best["finish_reason"] == "stop"


def test_unknown_words_only_if_asked_for(
    elman: Elman, translator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Translator.of_run

    def preferring_unknown(name: str, run: Any) -> Translator:
        head = next(m for m in run.model.modules() if isinstance(m, Softmax))
        with torch.no_grad():
            head.bias[run.tokenizer.target.unknown_id] += 20.0
        return opened(name, run)

    monkeypatch.setattr(Translator, "of_run", preferring_unknown)
    assert "<unk>" not in elman("translate", translator, stdin=LINE).ok().out
    assert "<unk>" in elman("translate", translator, "--unk", stdin=LINE).ok().out


def test_what_is_cut_off_is_told(elman: Elman, translator: Path) -> None:
    result = elman(
        "translate", translator, "--max-tokens", 2, stdin="the pupil lost the laptop .\n"
    )
    assert "line 1 was cut after 2 tokens" in result.err
    assert len(result.out.split()) == 2


def test_pictures(elman: Elman, translator: Path, pairs: tuple[Path, Path], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "attention.png"
    result = elman("translate", translator, "--attention", picture, stdin="\nthe pupil .\n").ok()
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "line 2" in result.err
    assert len(result.out.split("\n")) == 3
    picture = tmp_path / "lengths.png"
    result = elman(
        "evaluate", translator, *pairs, "--by-length", picture, "--beside", translator
    ).ok()
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "source words" in result.out
    assert "tok:13a" in result.out


def test_evaluate_and_info(elman: Elman, translator: Path, pairs: tuple[Path, Path]) -> None:
    found = elman("evaluate", translator, *pairs, "--json").json
    assert found["bleu"] > 90
    assert found["sentences"] == 129
    assert found["by_length"]
    about = elman("info", translator)
    assert "a translator over" in about.out
    assert "bilinear" in about.out


def test_separate_vocabularies_without_attention(
    elman: Elman, pairs: tuple[Path, Path], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    elman("train", "translator", *pairs, "--out", out, "--steps", 2, *SMALL,
                   "--set", "tokenizer.shared=false", "--set", "model.decoder.attention=none",
                   "--set", "model.decoder.context=both").ok()  # fmt: skip
    assert (out / "source_tokenizer.json").is_file()
    assert elman("translate", out, stdin="the pupil .\n").code == 0
    message, hint = elman("translate", out, "--attention", tmp_path / "a.png", stdin="a\n").error
    assert "no attention" in message
    assert hint


def test_a_run_can_be_lengthened(elman: Elman, pairs: tuple[Path, Path], tmp_path: Path) -> None:
    out = ("--out", tmp_path / "run", "--json")
    begun = elman("train", "translator", *pairs, *SMALL, *out, "--steps", 2)
    assert begun.code == 0, begun.err
    resumed = elman("train", "translator", *out, "--resume", "--steps", 4)
    assert resumed.json["steps"] == 4, resumed.err


def test_mistakes_have_sentences(
    elman: Elman, translator: Path, pairs: tuple[Path, Path], tmp_path: Path, model: Path
) -> None:
    short = tmp_path / "short.ne"
    short.write_text("eins\nzwei\n", encoding="utf-8")
    message, _ = elman("train", "translator", pairs[0], short).error
    assert "has 129 lines" in message
    assert "short.ne has 2" in message
    message, _ = elman("evaluate", translator, pairs[0], short).error
    assert "short.ne has 2" in message
    message, hint = elman("train", "translator", pairs[0]).error
    assert message == "parallel text needs two files, source and target, not 1"
    assert "SOURCE TARGET" in hint
    message, _ = elman("translate", model, stdin="a\n").error
    assert "is a language model, not a translator" in message
    message, _ = elman("generate", translator, "a").error
    assert "is a translator, not a language model" in message
    message, _ = elman("evaluate", model, pairs[0], "--by-length", tmp_path / "a.png").error
    assert "language model" in message


def test_searches_are_timed(elman: Elman, translator: Path, pairs: tuple[Path, Path]) -> None:
    given = ("--lines", pairs[0], "--repeat", 1, "--json")
    found = elman("bench", "beams", translator, *given).ok()
    rows = [json.loads(line) for line in found.out.splitlines()]
    assert [row["name"] for row in rows] == ["beam of 4", "greedy search"]
    for row in rows:
        about = row["settings"]
        assert row["peer"] is None
        assert row["ours"] == pytest.approx(about["sentences"] / about["seconds"])
        assert about["tokens"] > about["sentences"]
