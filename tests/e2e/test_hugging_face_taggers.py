"""Taggers in transformers: the labels and probabilities of `elman tag`, and the way back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elman import load
from elman.tasks.tagging.hugging_face import _words, files
from elman.tasks.tagging.vocabulary import TagVocabulary
from elman.testing import TOY_TREEBANK
from elman.text.words import split_words

transformers = pytest.importorskip("transformers")
pytest.importorskip("elman.hf")

Elman = Callable[..., Any]
SMALL = (
    *("--set", "model.hidden_size=8", "--set", "model.embedding_size=8", "--steps", 40),
    *("--set", "schedule.warmup_steps=0", "--set", "optimiser.learning_rate=0.05"),
    *("--set", "model.character_size=8", "--set", "model.num_layers=1", "--seed", "1"),
)
ENTITIES = "Anna B-PER\nBerg I-PER\nmet O\nBob B-PER\nin O\nParis B-LOC\n. O\n\n" * 30
TEXTS = ["the student opened the book.", "Anna café-crème Zürich", "her"]


@pytest.fixture(scope="module")
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Path, Path]]:
    """Makes a tagger of parts of speech (softmax) or of entities (CRF): its run and its folder."""
    elman: Elman = request.getfixturevalue("elman")
    found: dict[str, tuple[Path, Path]] = {}

    def make(kind: str) -> tuple[Path, Path]:
        if kind not in found:
            folder = tmp_path_factory.mktemp(kind)
            name, text = {
                "speech": ("train.conllu", TOY_TREEBANK),
                "entities": ("train.conll", ENTITIES),
            }[kind]
            (folder / name).write_text(text, encoding="utf-8")
            elman("train", "tagger", folder / name, "--out", folder / "run", *SMALL).ok()
            elman("convert", folder / "run", folder / "hf", "--to", "hf").ok()
            found[kind] = folder / "run", folder / "hf"
        return found[kind]

    return make


def in_bio(probabilities: dict[str, float]) -> dict[str, float]:
    """Sum the probabilities of BIOES labels that are one in BIO."""
    found: dict[str, float] = {}
    for label, p in probabilities.items():
        name = label.replace("S-", "B-").replace("E-", "I-")
        found[name] = found.get(name, 0) + p
    return found


@pytest.mark.parametrize("kind", ["speech", "entities"])
def test_probabilities_are_those_of_elman(kind: str, made: Callable) -> None:
    """In a padded batch, at the first byte of every word."""
    run, folder = made(kind)
    tagger = load(run)
    model = transformers.AutoModelForTokenClassification.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for side in ("right", "left"):
        inputs = tokenizer(TEXTS, return_tensors="pt", padding=True, padding_side=side)
        with torch.no_grad():
            found = model(**inputs).logits.exp()
        for row, text in enumerate(TEXTS):
            ids = inputs.input_ids[row]
            starts = [place for place, id in enumerate(ids.tolist()) if 2 <= id < 258]
            expected = [in_bio(one) for one in tagger.probabilities(text)]
            assert len(starts) == len(expected)
            for place, probabilities in zip(starts, expected, strict=True):
                here = {model.config.id2label[i]: float(p) for i, p in enumerate(found[row, place])}
                assert here == pytest.approx(probabilities, abs=1e-5)


@pytest.mark.parametrize("text", TEXTS)
def test_the_pipeline_has_the_tags_of_elman_tag(text: str, made: Callable) -> None:
    run, folder = made("speech")
    pipe = transformers.pipeline("token-classification", str(folder))
    places = {row["start"]: row for row in reversed(pipe(text))}
    expected = load(run).tag(text)
    where = 0
    for word, tag in expected:
        where = text.index(word, where)
        assert places[where]["entity"] == tag
        where += len(word)


def test_the_pipeline_groups_entities(made: Callable) -> None:
    run, folder = made("entities")
    pipe = transformers.pipeline("token-classification", str(folder), aggregation_strategy="first")
    text = "Anna Berg met Bob in Paris."
    tags = [tag for _, tag in load(run).tag(text)]
    assert tags == ["B-PER", "I-PER", "O", "B-PER", "O", "B-LOC", "O"]
    found = [
        (row["entity_group"], row["word"], text[row["start"] : row["end"]]) for row in pipe(text)
    ]
    assert found == [
        ("PER", "Anna Berg", "Anna Berg"),
        ("PER", "Bob", "Bob"),
        ("LOC", "Paris", "Paris"),
    ]


@pytest.mark.parametrize("kind", ["speech", "entities"])
def test_and_back(kind: str, made: Callable, elman: Elman, tmp_path: Path) -> None:
    """After a step of training in transformers, with one word left out of the loss."""
    run, folder = made(kind)
    elman("convert", folder, tmp_path / "same").ok()
    assert load(tmp_path / "same").probabilities(TEXTS[0]) == load(run).probabilities(TEXTS[0])
    model = transformers.AutoModelForTokenClassification.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(TEXTS[0], return_tensors="pt")
    labels = torch.zeros_like(inputs.input_ids)
    labels[0, :3] = -100
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model(**inputs, labels=labels).loss
    before.backward()
    optimiser.step()
    with torch.no_grad():
        after = model(**inputs, labels=labels)
    assert after.loss.item() < before.item()
    model.save_pretrained(tmp_path / "tuned")
    tokenizer.save_pretrained(tmp_path / "tuned")
    elman("convert", tmp_path / "tuned", tmp_path / "back").ok()
    expected = in_bio(load(tmp_path / "back").probabilities(TEXTS[0])[0])
    assert after.logits[0, 0].exp().tolist() == pytest.approx(
        [expected[name] for name in model.config.id2label.values()], abs=1e-5
    )


def test_an_empty_text_has_no_labels(made: Callable) -> None:
    pipe = transformers.pipeline("token-classification", str(made("speech")[1]))
    assert pipe(" ") == []


def test_an_empty_text_in_a_batch_changes_nothing(made: Callable) -> None:
    pipe = transformers.pipeline("token-classification", str(made("speech")[1]))
    tokenizer, model = pipe.tokenizer, pipe.model
    with torch.no_grad():
        alone = model(**tokenizer("the book", return_tensors="pt")).logits[0]
        both = model(**tokenizer(["", "the book"], padding=True, return_tensors="pt")).logits
    torch.testing.assert_close(both[1], alone)


def test_pretrained_vectors_are_refused(made: Callable, elman: Elman, tmp_path: Path) -> None:
    data = made("speech")[0].parent / "train.conllu"
    (tmp_path / "v.txt").write_text("the 0.1 0.2\nbook 0.3 0.4\n")
    run = tmp_path / "run"
    elman("train", "tagger", data, "--out", run, "--embeddings", tmp_path / "v.txt", *SMALL).ok()
    message, hint = elman("convert", run, tmp_path / "hf", "--to", "hf").error
    assert "vectors of another model" in message
    assert "--embeddings" in hint
    assert not (tmp_path / "hf").exists()


TOKENIZER = tokenizers.Tokenizer.from_str(
    json.dumps(files(TagVocabulary(None, True, ("A",), ()))["tokenizer.json"])
)


@settings(max_examples=50)
@given(st.text(st.characters(exclude_categories=["Cn", "Cs"])))
def test_words_are_split_as_elman_splits_them(text: str) -> None:
    """All characters that Python knows; tokenizers may know those of a later Unicode."""
    found, places = _words(TOKENIZER.encode(text).ids)
    assert found == split_words(text)
    assert len(places) == sum(len(word.encode()) for word in found)
