"""`elman convert RUN model.onnx`: onnxruntime gives Elman's answers, and Elman opens the file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elman import load
from elman.nn.character_cnn import spelling_table

pytest.importorskip("onnx", reason="onnx is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

Elman = Callable[..., Any]
SPECIMENS = Path(__file__).parents[1] / "unit" / "runs" / "specimens"
PROMPT = "the student"


def opened(path: Path) -> tuple[Any, dict[str, Any]]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    entries = session.get_modelmeta().custom_metadata_map
    return session, {key: json.loads(value) for key, value in entries.items()}


@pytest.fixture(scope="module")
def chars(elman: Elman, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model over characters as an ONNX file."""
    file: Path = tmp_path_factory.mktemp("onnx") / "chars.onnx"
    elman("convert", model, file).ok()
    return file


def test_elman_opens_the_file(elman: Elman, model: Path, chars: Path, tmp_path: Path) -> None:
    how = ("--max-tokens", 20, "--seed", 1)
    assert (
        elman("generate", chars, PROMPT, *how).ok().out
        == elman("generate", model, PROMPT, *how).out
    )
    expected, found = (elman("next", m, PROMPT, "--json").ok().json for m in (model, chars))
    assert [row["token"] for row in found[:5]] == [row["token"] for row in expected[:5]]
    text = tmp_path / "text.txt"
    text.write_text("The student opened the book.\nThey read.\n", encoding="utf-8")
    of_file, of_run = (elman("evaluate", m, text, "--json").ok().json for m in (chars, model))
    assert json.dumps(of_file).count("perplexity")
    assert figures(of_file) == pytest.approx(figures(of_run), rel=1e-5)
    assert "onnx" in elman("info", chars).ok().out


def figures(answer: Any) -> list[float]:
    rows = answer if isinstance(answer, list) else [answer]
    return [row["perplexity"] for row in rows]


def test_beams_and_surprisal(chars: Path, model: Path) -> None:
    of_run, of_file = load(model), load(chars)
    rows = [[row.surprisal for row in lm.surprisal(PROMPT)] for lm in (of_run, of_file)]
    assert rows[1] == pytest.approx(rows[0], abs=1e-5)
    best = [lm.complete(PROMPT, beam_size=3, max_tokens=4)[0] for lm in (of_run, of_file)]
    assert best[0].text == best[1].text


def test_the_sequence_graph_is_beside_it(chars: Path, model: Path) -> None:
    session, entries = opened(chars.with_suffix(".sequence.onnx"))
    assert entries["elman"] == {"format": 1, "task": "lm", "graph": "sequence"}
    lm = load(model)
    ids = [lm.tokenizer.boundary_id, *lm.tokenizer.encode(PROMPT).tolist()]
    state = lm.model.initial_state(1).flatten()
    given = {f"state.{name}": tensor.numpy() for name, tensor in state.items()}
    (logprobs_1TV,) = session.run(["logprobs"], {"tokens": np.array([ids]), **given})
    expected = [row.surprisal for row in lm.surprisal(PROMPT, base="e", include_end=False)]
    found = [-logprobs_1TV[0, place, token] for place, token in enumerate(ids[1:])]
    assert found == pytest.approx(expected, abs=1e-5)


def test_one_byte_a_weight(elman: Elman, model: Path, chars: Path, tmp_path: Path) -> None:
    """The numbers are those of a run folder of one byte a weight."""
    elman("convert", model, tmp_path / "small.onnx", "--quantise", "int8").ok()
    elman("convert", model, tmp_path / "run", "--quantise", "int8").ok()
    elman("convert", tmp_path / "run", tmp_path / "again.onnx").ok()
    sizes = [p.stat().st_size for p in (chars, tmp_path / "small.onnx", tmp_path / "again.onnx")]
    assert sizes[1] < sizes[0] / 2
    assert sizes[2] == pytest.approx(sizes[1], rel=0.01)
    names = ("run", "small.onnx", "again.onnx")
    rows = [[r.surprisal for r in load(tmp_path / name).surprisal(PROMPT)] for name in names]
    assert rows[1] == pytest.approx(rows[0], abs=1e-5)
    assert rows[2] == pytest.approx(rows[0], abs=1e-5)
    assert rows[0] != pytest.approx([r.surprisal for r in load(model).surprisal(PROMPT)], abs=1e-5)


@pytest.mark.parametrize("name", ["format-1-classifier", "format-1-classifier-chars"])
def test_a_classifier(name: str, elman: Elman, tmp_path: Path) -> None:
    elman("convert", SPECIMENS / name, tmp_path / "model.onnx").ok()
    session, entries = opened(tmp_path / "model.onnx")
    classifier = load(SPECIMENS / name)
    texts = ["the student read a book", "a very bad day indeed , they said"]
    rows = [classifier.vocabulary.encode(text) for text in texts]
    tokens = np.zeros((2, max(map(len, rows))), np.int64)
    for row, ids in enumerate(rows):
        tokens[row, : len(ids)] = ids
    given = {"tokens": tokens, "lengths": np.array([len(ids) for ids in rows])}
    (logprobs_BN,) = session.run(None, given)
    for text, found in zip(texts, np.exp(logprobs_BN), strict=True):
        expected = classifier.classify(text).probabilities
        assert dict(zip(entries["labels"], found, strict=True)) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", ["format-1-tagger", "format-1-tagger-crf"])
def test_a_tagger(name: str, elman: Elman, tmp_path: Path) -> None:
    elman("convert", SPECIMENS / name, tmp_path / "model.onnx").ok()
    session, entries = opened(tmp_path / "model.onnx")
    tagger = load(SPECIMENS / name)
    for sentence in (["The", "student", "opened", "books", "."], ["Unheard-of"]):
        words = [[tagger.vocabulary.word_id(word) for word in sentence]]
        given = {
            "words": np.array(words),
            "spellings": np.arange(len(sentence))[None],
            "characters": spelling_table(sentence, entries["characters"]["most"]).long().numpy(),
            "lengths": np.array([len(sentence)]),
        }
        asked = {one.name for one in session.get_inputs()}
        labels, shares = session.run(
            ["labels", "probabilities"], {name: given[name] for name in asked}
        )
        names = entries["vocabulary"]["labels"]
        tags = tagger.vocabulary.to_tags([names[label] for label in labels[0]])
        assert tags == [tag for _, tag in tagger.tag(sentence)]
        for found, expected in zip(shares[0], tagger.probabilities(sentence), strict=True):
            assert dict(zip(names, found, strict=True)) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", ["format-1-translator", "format-1-translator-shared"])
def test_a_translator(name: str, elman: Elman, tmp_path: Path) -> None:
    """Greedy decoding with the two graphs gives the translation of Elman."""
    elman("convert", SPECIMENS / name, tmp_path / "model.onnx").ok()
    step, entries = opened(tmp_path / "model.onnx")
    encoder, _ = opened(tmp_path / "model.encoder.onnx")
    translator = load(SPECIMENS / name)
    line = "the student opened"
    source = np.array([translator.tokenizers.encode_source(line)])
    names = [one.name for one in encoder.get_outputs()]
    given = {"source": source, "lengths": np.array([source.shape[1]])}
    state = dict(zip(names, encoder.run(names, given), strict=True))
    outputs = [one.name for one in step.get_outputs()]
    asked = {one.name for one in step.get_inputs()} - {"tokens"}
    token, ids = entries["boundary"], []
    for _ in range(6):
        before = {name: state[name] for name in asked}
        found = step.run(outputs, {"tokens": np.array([token]), **before})
        after = dict(zip(outputs, found, strict=True))
        state |= {f"state.{k[5:]}": v for k, v in after.items() if k.startswith("next.")}
        logprobs = after["logprobs"][0]
        if entries["unknown"] is not None:
            logprobs[entries["unknown"]] = -np.inf
        token = int(logprobs.argmax())
        if token == entries["boundary"]:
            break
        ids.append(token)
    ((best,),) = translator.translations([line], beam_size=1, temperature=0, max_tokens=6)
    assert translator.tokenizers.target.decode(ids) == best.text


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("format-1-lm-rnnme", "MaxEnt"),
        ("format-1-window", "cannot be converted to ONNX"),
        ("format-1-tagger-elmo", "vectors of another model"),
        ("format-1-captioner", "cannot be converted to ONNX"),
        ("format-1-ngram", "cannot be converted to ONNX"),
    ],
)
def test_what_has_no_form_is_refused(name: str, word: str, elman: Elman, tmp_path: Path) -> None:
    result = elman("convert", SPECIMENS / name, tmp_path / "model.onnx")
    assert result.code == 2
    assert word in result.error[0]
    assert not list(tmp_path.iterdir())


def test_files_are_not_overwritten(elman: Elman, model: Path, tmp_path: Path) -> None:
    (tmp_path / "model.sequence.onnx").write_text("mine", encoding="utf-8")
    result = elman("convert", model, tmp_path / "model.onnx")
    assert "already exists" in result.error[0]
    assert [path.name for path in tmp_path.iterdir()] == ["model.sequence.onnx"]


def test_other_files_are_explained(elman: Elman, chars: Path, tmp_path: Path) -> None:
    elman("convert", SPECIMENS / "format-1-classifier", tmp_path / "model.onnx").ok()
    result = elman("generate", tmp_path / "model.onnx", PROMPT)
    assert (result.code, "classifier" in result.error[0]) == (2, True)
    for content in (b"", b"not a graph", chars.read_bytes()[:1000]):
        (tmp_path / "bad.onnx").write_bytes(content)
        assert elman("generate", tmp_path / "bad.onnx", PROMPT).code == 1
    shutil.copy(chars, tmp_path / "other.onnx")
    assert elman("convert", chars, tmp_path / "x.onnx").code in (1, 2)
