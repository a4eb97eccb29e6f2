"""Taggers, classifiers and translators as ONNX graphs give the numbers of torch."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from elman.tasks.classification import onnx as classifiers
from elman.tasks.classification.model import ClassifierConfig
from elman.tasks.tagging import onnx as taggers
from elman.tasks.tagging.model import TaggerConfig
from elman.tasks.tagging.vocabulary import TagVocabulary
from elman.tasks.translation import onnx as translators
from elman.tasks.translation.model import SequenceToSequenceConfig
from tiny_models import TINY

pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

from elman.nn.onnx.files import difference, model_bytes

FAST = {"attention additive", "input feeding", "crf", "pairs, all pooling"}


def some(names: Any) -> list[Any]:
    """The others are slow: a fraction of a second each."""
    return [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in names]


SIZE, LABELS = 20, ("a", "b", "c", "d", "e")
TRANSLATORS = {name: c for name, c in TINY.items() if isinstance(c, SequenceToSequenceConfig)}
TAGGERS = {
    "words and a convolution": TaggerConfig(hidden_size=8),
    "crf": TaggerConfig(hidden_size=8, output="crf"),
    "characters read by an lstm": TaggerConfig(hidden_size=8, characters="lstm"),
    "words alone, residual": TaggerConfig(
        hidden_size=8, characters="none", merge="mean", join="residual"
    ),
    "spelling alone, gru, one way, crf": TaggerConfig(
        hidden_size=8,
        cell="gru",
        characters="cell",
        output="crf",
        embedding_size=0,
        bidirectional=False,
    ),
}
CLASSIFIERS = {
    "max": ClassifierConfig(hidden_size=8),
    "pairs, all pooling": ClassifierConfig(
        hidden_size=8, pooling=("last", "mean", "max", "attention")
    ),
    "one way, slstm, highway": ClassifierConfig(
        hidden_size=8,
        bidirectional=False,
        pooling=("last",),
        cell="slstm",
        num_layers=2,
        join="highway",
    ),
}


def check(room: ModuleType, model: Any, vocabulary: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if hasattr(room, "tokenizer_entries"):
        monkeypatch.setattr(room, "tokenizer_entries", lambda tokenizer: {})
    run = SimpleNamespace(model=model.eval(), tokenizer=vocabulary, path="run")
    for graph in room.form(run).graphs:
        content = model_bytes(graph, {})
        for size in (1, 4):
            assert difference(graph, content, size) < 1e-5


@pytest.mark.parametrize("name", some(TRANSLATORS))
def test_translators(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    side = SimpleNamespace(vocab_size=SIZE)
    pair = SimpleNamespace(source=side, target=side, shared=True)
    check(translators, TRANSLATORS[name].build(SIZE), pair, monkeypatch)


@pytest.mark.parametrize("name", some(TAGGERS))
def test_taggers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    vocabulary = TagVocabulary(None, False, LABELS, tuple(map(str, range(SIZE - 1))))
    model = TAGGERS[name].build(SIZE, len(LABELS))
    if model.crf is not None:
        torch.nn.init.normal_(model.crf.transition_NN)
    check(taggers, model, vocabulary, monkeypatch)


@pytest.mark.parametrize("name", some(CLASSIFIERS))
def test_classifiers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    vocabulary = SimpleNamespace(vocab_size=SIZE, labels=LABELS, tokenizer=None)
    model = CLASSIFIERS[name].build(SIZE, len(LABELS), pairs="pairs" in name)
    check(classifiers, model, vocabulary, monkeypatch)
