"""ARPA files of sub-words and words in what speech recognisers use: kenlm's module, pyctcdecode."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pytest
import tokenizers

import elman as library
from elman.cli.main import run

TEXT = "\n".join(topics[name] for name in ("booleans", "for", "while", "if", "class", "with"))
LINES = [" ".join(line.split()) for line in TEXT.splitlines() if line.strip()]
Make = Callable[..., tuple[Any, Any]]


@pytest.fixture
def make(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Make:
    """Train by the command line with options; return our model and kenlm's of the ARPA file."""
    kenlm = pytest.importorskip("kenlm", reason="the kenlm package is not installed")
    (tmp_path / "text.txt").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")

    def make(*options: str) -> tuple[Any, Any]:
        arpa, out = tmp_path / "lm.arpa", tmp_path / "run"
        command = ["train", "ngram", tmp_path / "text.txt", "--order", 3, "--arpa", arpa]
        assert run(list(map(str, [*command, "--out", out, *options]))) == 0, capsys.readouterr()
        return library.load(out), kenlm.Model(str(arpa))

    return make


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_kenlm_scores_the_pieces_of_sentencepiece_as_we_do(
    make: Make, tmp_path: Path, kind: str
) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    model = tmp_path / "asr.model"
    with model.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(LINES),
            model_writer=file,
            vocab_size=300,
            model_type=kind,
            minloglevel=2,
        )
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(model))
    ours, theirs = make("--tokenizer", str(model))
    for line in (*LINES[:50], "an unheard-of line", "日本"):
        split = " ".join(pieces.encode(line, out_type=str))
        expected = theirs.score(split) * math.log(10)
        assert ours.logprob(line, as_is=True) == pytest.approx(expected, abs=1e-3), line
    assert pieces.id_to_piece(10) in theirs
    reread = library.load(tmp_path / "lm.arpa")
    assert reread.logprob(LINES[0]) == pytest.approx(ours.logprob(LINES[0]), abs=1e-3)


def test_convert_writes_a_tokenizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    model, out = tmp_path / "asr.model", tmp_path / "tokenizer.json"
    with model.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(LINES), model_writer=file, vocab_size=300, minloglevel=2
        )
    assert run(["convert", str(model), str(out)]) == 0
    assert "300" in capsys.readouterr().out
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(model))
    assert tokenizers.Tokenizer.from_file(str(out)).encode(LINES[3]).ids == pieces.encode(LINES[3])
    for source, said in (
        (model, "already exists"),
        ("tiktoken:nonsense", "already exists"),
        ("runs/mine", "does not convert to a tokenizer.json"),
    ):
        assert run(["convert", str(source), str(out)]) == 2
        assert said in capsys.readouterr().err


def test_kenlm_scores_our_own_sub_words_as_we_do(make: Make) -> None:
    ours, theirs = make("--tokenizer", "sentencepiece", "--set", "tokenizer.vocab_size=500")
    names = ours.tokenizer.names()
    for line in (*LINES[:50], "Ελληνικά"):
        split = " ".join(names[i] for i in ours.tokenizer.encode(line))
        expected = theirs.score(split) * math.log(10)
        assert ours.logprob(line, as_is=True) == pytest.approx(expected, abs=1e-3), line


def test_pyctcdecode_reads_our_words(make: Make, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        decoder = pytest.importorskip("pyctcdecode", reason="pyctcdecode is not installed")
        from pyctcdecode.language_model import LanguageModel, load_unigram_set_from_arpa
    ours, theirs = make("--tokenizer", "pretokenized")
    scorer = LanguageModel(theirs, load_unigram_set_from_arpa(str(tmp_path / "lm.arpa")), 1.0, 0.0)
    words = LINES[3].split()
    state, total = scorer.get_start_state(), 0.0
    for number, word in enumerate(words, start=1):
        score, state = scorer.score(state, word, is_last_word=number == len(words))
        total += score
    assert total == pytest.approx(ours.logprob(LINES[3], as_is=True), abs=1e-3)
    # The language model turns a sound between two spellings into the word of the text.
    labels = ["", *"abcdefghijklmnopqrstuvwxyz "]
    made = decoder.build_ctcdecoder(labels, str(tmp_path / "lm.arpa"), alpha=1.0)
    frames = np.full((len("the while"), len(labels)), -10.0)
    for place, letter in enumerate("the while"):
        frames[place, labels.index(letter)] = 0.0
    frames[5, labels.index("j")] = 0.0  # "the wjile" is as likely to the ear
    assert made.decode(frames) == "the while"
