"""Pre-trained vectors beside a model's own: what enters, what is remembered, what is saved."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from elman.base.errors import UsageError
from elman.batches.wording import NO_WORD, Spelled, Wording
from elman.models.embedder import Embedder, Sentences
from elman.models.embeddings import Embeddings, EmbeddingsConfig
from elman.models.static_vectors import StaticVectors
from elman.nn.character_cnn import spelling_table
from elman.nn.state import State
from elman.tasks.classification.batches import labelled_batch
from elman.tasks.classification.model import ClassifierConfig
from elman.tasks.classification.objective import ClassificationConfig, classification
from elman.tasks.tagging.batches import encode_tagged, tagged_batch
from elman.tasks.tagging.model import TaggerConfig
from elman.tasks.tagging.objective import tagging
from elman.tasks.tagging.vocabulary import make_vocabulary


class Lengths(Embedder):
    """Layer j of a word: its length, times a weight, plus j."""

    num_layers = 3
    size = 4

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.dropout = nn.Dropout(0.5)
        self.asked: list[int] = []

    def read(self, sentences: Sentences, state: State | None = None) -> tuple[Tensor, Any, State]:
        assert all(sentences), "no sentence is empty"
        self.asked.append(len(sentences))
        lengths_B = torch.tensor([len(words) for words in sentences])
        ids_BT = torch.zeros(len(sentences), int(lengths_B.max()))
        for row, words in enumerate(sentences):
            ids_BT[row, : len(words)] = torch.tensor([float(len(word)) for word in words])
        real_BT1 = ids_BT.unsqueeze(2) > 0
        layers = [real_BT1 * (ids_BT.unsqueeze(2) * self.weight + j) for j in range(3)]
        return self.dropout(torch.stack(layers)), lengths_B, State({})

    def groups(self) -> list[list[nn.Parameter]]:
        return [[self.weight]]


WORDING = Wording.of([Spelled.of_words(["a", "bcd"]), Spelled(("efghi",), (0, 0, NO_WORD))])


def make(**settings: Any) -> Embeddings:
    return Embeddings(EmbeddingsConfig(path="x", dropout=0.0, **settings), Lengths())


def test_every_token_has_its_words_vectors() -> None:
    layers_LBTD = make().read(WORDING, 4)
    assert layers_LBTD is not None
    assert layers_LBTD.shape == (3, 2, 4, 4)
    assert layers_LBTD[0, :, :, 0].tolist() == [[1, 3, 0, 0], [5, 5, 0, 0]]
    assert layers_LBTD[2, :, :, 3].tolist() == [[3, 5, 0, 0], [7, 7, 0, 0]]


def test_a_text_without_words_has_none() -> None:
    for wording in (
        Wording.of([Spelled((), ())]),
        Wording.of([*WORDING.sentences, Spelled((), ())]),
    ):
        for settings in ({}, {"fine_tuned": True}):
            layers_LBTD = make(**settings).eval().read(wording, 3)
            assert layers_LBTD is not None
            assert layers_LBTD.shape[1:3] == (len(wording.sentences), 3)
            assert not layers_LBTD[:, -1].any()


def test_what_is_remembered_is_not_computed_again() -> None:
    embeddings = make()
    embedder = embeddings.embedder
    assert isinstance(embedder, Lengths)
    before = embeddings.read(WORDING, 4)
    embeddings.remember([["a", "bcd"], ["a", "bcd"], [], ["efghi"]])
    embedder.asked.clear()
    after = embeddings.read(WORDING, 4)
    assert not embedder.asked
    assert before is not None
    assert after is not None
    assert torch.equal(before, after)


def test_memory_is_bounded() -> None:
    embeddings = Embeddings(EmbeddingsConfig(path="x", cache_megabytes=1), Lengths())
    embeddings.remember([["word"] * n for n in range(1, 1000)])
    words = sum(len(words) for words in embeddings._known)
    assert 0 < words * 2 * 3 * 4 <= 1_000_000
    read = embeddings.read(Wording.of([Spelled.of_words(["word"] * 999)]), 999)
    assert read is not None
    assert read[0, 0, 998, 0] == 4


def test_a_frozen_embedder_is_neither_trained_nor_saved() -> None:
    embeddings = make(enters="both").train()
    assert embeddings.embedder is not None
    assert not embeddings.embedder.training
    assert [name for name, p in embeddings.named_parameters() if p.requires_grad] == list(
        embeddings.state_dict()
    )
    assert set(embeddings.weights()) == {"input", "output"}
    assert embeddings.weights()["input"] == {
        "weights": pytest.approx([1 / 3] * 3),
        "scale": pytest.approx(0.1),
    }
    other = make(enters="both")
    with torch.no_grad():
        for parameter in embeddings.mixes.parameters():
            parameter.add_(torch.rand_like(parameter))
    other.load_state_dict(embeddings.state_dict())
    assert other.weights() == embeddings.weights()


def test_a_fine_tuned_one_is_both() -> None:
    embeddings = make(fine_tuned=True, layers="top").train()
    assert embeddings.embedder is not None
    assert embeddings.embedder.training
    assert "embedder.weight" in embeddings.state_dict()
    assert embeddings.weights() == {}
    layers_LBTD = embeddings.read(WORDING, 3)
    assert layers_LBTD is not None
    embeddings.beside(torch.zeros(2, 3, 1), layers_LBTD, "input").sum().backward()
    assert embeddings.embedder.weight.grad is not None


def test_only_the_top_layer_is_remembered_where_only_it_is_read() -> None:
    embeddings = make(layers="top")
    embeddings.remember([["a"]])
    assert embeddings._known["a",].shape == (1, 1, 4)
    layers_LBTD = embeddings.read(Wording.of([Spelled.of_words(["a"])]), 1)
    assert layers_LBTD is not None
    assert layers_LBTD.flatten().tolist() == [3, 3, 3, 3]


def test_impossible_settings_are_refused() -> None:
    for name, value in (
        ("dropout", 1.0),
        ("rate_decay", 0.5),
        ("scale", 0.0),
        ("cache_megabytes", -1),
    ):
        with pytest.raises(UsageError, match=rf"embeddings\.{name}"):
            EmbeddingsConfig(**{name: value})


def test_static_vectors_know_words_in_lower_case_too() -> None:
    vectors = StaticVectors(["the", "Cat"], torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    layers_LBTD, lengths_B = vectors([["The", "Cat", "cat"], ["the"]])
    assert layers_LBTD[0].tolist() == [[[1, 2], [3, 4], [0, 0]], [[1, 2], [0, 0], [0, 0]]]
    assert lengths_B.tolist() == [3, 1]


ROWS = [(["the", "dog", "ran"], ["D", "N", "V"]), (["dogs", "ran"], ["N", "V"])]
VOCABULARY, COUNTS = make_vocabulary(ROWS)
PLACES = ("input", "output", "both")


@pytest.mark.parametrize("enters", PLACES)
@pytest.mark.parametrize("layers", ["mix", "top", "concat"])
def test_a_tagger_reads_them(enters: Any, layers: Any) -> None:
    torch.manual_seed(1)
    settings = EmbeddingsConfig(path="x", enters=enters, layers=layers)
    config = TaggerConfig(hidden_size=6, embedding_size=4, character_size=4, embeddings=settings)
    model = config.build(VOCABULARY.vocab_size, len(VOCABULARY.labels), embedder=Lengths())
    data = encode_tagged(ROWS, VOCABULARY)
    batch = tagged_batch(data.sentences, spelling_table(data.spellings, 20), data.spellings)
    tagging(model, batch, None).loss.backward()  # type: ignore[no-untyped-call]
    unread = [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert not unread
    model.eval()
    whole, part = (
        model.emissions(b.words_BT, b.spellings_BT, b.characters_UC, b.lengths_B, b.wording)
        for b in (batch, batch.rows(slice(1, 2)))
    )
    torch.testing.assert_close(whole[1:, :2], part, rtol=1e-4, atol=1e-5)


def test_a_tagger_may_read_nothing_else() -> None:
    alone = {"hidden_size": 6, "embedding_size": 0, "characters": "none"}
    with pytest.raises(UsageError, match="embedding_size"):
        TaggerConfig(**alone)  # type: ignore[arg-type]
    config = TaggerConfig(**alone, embeddings=EmbeddingsConfig(path="x"))  # type: ignore[arg-type]
    model = config.build(VOCABULARY.vocab_size, 3, embedder=Lengths())
    data = encode_tagged(ROWS, VOCABULARY)
    batch = tagged_batch(data.sentences, spelling_table(data.spellings, 20), data.spellings)
    assert tagging(model, batch, None).loss.isfinite()


@pytest.mark.parametrize("enters", PLACES)
def test_a_classifier_reads_them(enters: Any) -> None:
    torch.manual_seed(1)
    settings = EmbeddingsConfig(path="x", enters=enters, dropout=0.0)
    config = ClassifierConfig(
        hidden_size=6, embedding_size=4, embeddings=settings, pooling=("max", "last")
    )
    model = config.build(9, 2, embedder=Lengths())
    spelled = [Spelled.of_words(["a", "b"]), Spelled.of_words(["a", "bcdefg"]), Spelled((), ())]
    batch = labelled_batch([[1, 2], [1, 2], [3]], [0, 1, 0], spelled)
    outcome = classification(ClassificationConfig(), model, None, batch, None)
    outcome.loss.backward()  # type: ignore[no-untyped-call]
    assert not [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]
    model.eval()
    logits_BN = model(batch.tokens_BT, batch.lengths_B, batch.wording)
    assert not torch.allclose(logits_BN[0], logits_BN[1]), "the same ids, other words"
    part = batch.rows(slice(2, 3))
    alone_BN = model(part.tokens_BT, part.lengths_B, part.wording)
    torch.testing.assert_close(logits_BN[2:], alone_BN, rtol=1e-4, atol=1e-5)
