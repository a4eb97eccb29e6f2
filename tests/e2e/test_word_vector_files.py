"""Word vectors of every task's models in word2vec's text format, and models that begin with them.

The runs are the specimens of past formats, so that nothing is trained here but two language models.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import elman as library

Elman = Callable[..., Any]
SPECIMENS = Path(__file__).parents[1] / "unit" / "runs" / "specimens"
TABLES = {
    "format-1-lm": "input.embedding.weight",
    "format-1-window": "input.embedding.weight",
    "format-1-classifier": "input.embedding.weight",
    "format-1-classifier-chars": "input.embedding.weight",
    "format-1-tagger": "input.weight",
    "format-1-translator": "input.embedding.weight",
    "format-1-translator-shared": "decoder.input.embedding.weight",
    "format-1-captioner": "decoder.input.embedding.weight",
    "format-1-conditional": "decoder.input.embedding.weight",
}
"""Run folders, and the tensors that are their word vectors."""


def parsed(path: Path) -> tuple[list[str], np.ndarray[Any, Any]]:
    """Read word2vec's text format as gensim does."""
    header, *lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    rows = [line.split(" ") for line in lines]
    assert [len(rows), len(rows[0]) - 1] == list(map(int, header.split()))
    return [row[0] for row in rows], np.array([row[1:] for row in rows], np.float32)


@pytest.mark.parametrize("name", TABLES)
def test_vectors_of_every_kind_of_model(name: str, tmp_path: Path, elman: Elman) -> None:
    out = tmp_path / "words.vec"
    found = elman("convert", SPECIMENS / name, out, "--json").json
    words, vectors = parsed(out)
    table = load_file(SPECIMENS / name / "model.safetensors")[TABLES[name]]
    assert found["words"] == len(words) == len(set(words)) == len(table)
    assert found["size"] == table.shape[1]
    np.testing.assert_array_equal(vectors, table.astype(np.float32))


def test_vectors_from_letters(tmp_path: Path, elman: Elman) -> None:
    out = tmp_path / "words.txt"
    run = SPECIMENS / "format-1-elmo"
    elman("convert", run, out).ok()
    words, vectors = parsed(out)
    elmo = library.load(run, device="cpu")
    expected = elmo.embedder.word_vectors([words[-1]])[0].numpy()
    np.testing.assert_allclose(vectors[-1], expected, rtol=1e-4, atol=1e-6)


def test_the_target_of_a_translator(tmp_path: Path, elman: Elman) -> None:
    run = SPECIMENS / "format-1-translator"
    assert "words" in elman("convert", run, tmp_path / "t.vec", "--side", "target").out
    table = load_file(run / "model.safetensors")["decoder.input.embedding.weight"]
    np.testing.assert_array_equal(parsed(tmp_path / "t.vec")[1], table.astype(np.float32))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("format-1-ngram", (), "has no word vectors"),
        ("format-1-maxent", (), "has no word vectors"),
        ("format-1-lm", ("--side", "target"), "has no vectors of the target"),
        ("format-1-translator", ("--side", "middle"), "has no vectors of the middle"),
    ],
)
def test_what_has_no_vectors(
    name: str, options: tuple[str, ...], message: str, tmp_path: Path, elman: Elman
) -> None:
    found = elman("convert", SPECIMENS / name, tmp_path / "x.vec", *options)
    assert found.code == 2
    assert message in found.error[0]
    assert not (tmp_path / "x.vec").exists()


@pytest.mark.parametrize("task", ["lm", "window"])
def test_a_model_begins_with_vectors(
    task: str, toy: Path, words: Path, tmp_path: Path, elman: Elman
) -> None:
    vectors, out = tmp_path / "start.vec", tmp_path / "run"
    elman("convert", words, vectors).ok()
    small = ("--set", "model.hidden_size=12", "--set", "training.sample_length=0")
    rate = ("--set", "optimiser.learning_rate=1e-12")
    tokens = ("--set", f"tokenizer.file={words / 'tokenizer.json'}")
    arguments = ("train", task, toy, "--vectors", vectors, "--out", out, "--steps", "1")
    trained = elman(*arguments, *small, *rate, *tokens, "--device", "cpu").ok()
    assert "of them with a vector" in trained.err
    vectors.rename(tmp_path / "elsewhere.vec")  # the run does not need it any more
    elman("convert", out, tmp_path / "end.vec").ok()
    names, after = parsed(tmp_path / "end.vec")
    expected_names, before = parsed(tmp_path / "elsewhere.vec")
    assert names == expected_names
    np.testing.assert_allclose(after, before, atol=1e-6)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("the 1 2\n", "has vectors of 2 numbers, the model 3", "set model.embedding_size=2"),
        ("qqqq 1 2 3\n", "has none of the", "compare"),
        ("the 1 2 3\nof 1 2\n", "line 2 is not a word", "word2vec"),
    ],
)
def test_vectors_that_do_not_fit(
    text: str, message: str, hint: str, toy: Path, words: Path, tmp_path: Path, elman: Elman
) -> None:
    (tmp_path / "bad.txt").write_text(text)
    sizes = ("--set", "model.hidden_size=3", "--set", "model.embedding_size=3")
    tokens = ("--set", f"tokenizer.file={words / 'tokenizer.json'}")
    arguments = ("train", "lm", toy, "--vectors", tmp_path / "bad.txt", *sizes, *tokens)
    found = elman(*arguments, "--out", tmp_path / "run", "--steps", "1")
    assert found.code
    assert message in found.error[0]
    assert hint in found.error[1]
    assert not (tmp_path / "run" / "config.json").exists()


def test_letters_have_no_vectors_to_begin_with(toy: Path, tmp_path: Path, elman: Elman) -> None:
    settings = ("--set", "model.input=character_cnn", "--set", "model.vectors=x.vec")
    found = elman("train", "lm", toy, *settings, "--set", "model.embedding_size=3")
    assert found.code == 2
    assert "model.vectors" in found.error[0]
