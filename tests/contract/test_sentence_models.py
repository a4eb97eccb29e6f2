"""What is asked of every model that reads sentences: blind to padding, learns a batch by heart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from elman.nn.character_cnn import spelling_table
from elman.tasks.classification.batches import batch_of_rows, labelled_batch
from elman.tasks.classification.model import ClassifierConfig
from elman.tasks.classification.objective import ClassificationConfig, classification
from elman.tasks.tagging.batches import TaggedBatch, encode_tagged, tagged_batch
from elman.tasks.tagging.model import TaggerConfig
from elman.tasks.tagging.objective import tagging
from elman.tasks.tagging.vocabulary import make_vocabulary

SMALL: dict[str, Any] = {"hidden_size": 8, "embedding_size": 6, "character_size": 6}
TAGGERS = {
    "softmax": TaggerConfig(**SMALL),
    "crf": TaggerConfig(**SMALL, output="crf"),
    "character lstm": TaggerConfig(**SMALL, characters="lstm"),
    "words alone": TaggerConfig(hidden_size=8, embedding_size=6, characters="none"),
    "characters alone": TaggerConfig(**SMALL | {"embedding_size": 0}),
    "one direction": TaggerConfig(**SMALL | {"hidden_size": 16}, bidirectional=False, num_layers=1),
    "spelled by its own cell": TaggerConfig(
        **SMALL, characters="cell", cell="rnn", nonlinearity="relu", layer_norm=True
    ),
    "gru, summed, highway": TaggerConfig(**SMALL, cell="gru", merge="sum", join="highway"),
}
ROWS = [
    (["the", "dog", "sees", "the", "cat"], ["D", "N", "V", "D", "N"]),
    (["dogs", "run"], ["N", "V"]),
    (["New York"], ["N"]),
]
VOCABULARY, COUNTS = make_vocabulary(ROWS)


def build(config: TaggerConfig) -> Any:
    torch.manual_seed(1)
    return config.build(
        VOCABULARY.vocab_size, len(VOCABULARY.labels), counts_V=torch.tensor(COUNTS)
    )


def batch_of(*numbers: int) -> TaggedBatch:
    data = encode_tagged([ROWS[number] for number in numbers], VOCABULARY)
    return tagged_batch(data.sentences, spelling_table(data.spellings, 32))


def emissions(model: Any, batch: TaggedBatch) -> Tensor:
    found: Tensor = model.emissions(
        batch.words_BT, batch.spellings_BT, batch.characters_UC, batch.lengths_B
    )
    return found


@pytest.fixture(params=TAGGERS)
def config(request: pytest.FixtureRequest) -> TaggerConfig:
    return TAGGERS[request.param]


@torch.no_grad()
def test_padding_and_company_change_nothing(config: TaggerConfig) -> None:
    model = build(config).eval()
    together = emissions(model, batch_of(0, 1, 2))
    assert together.shape == (3, 5, len(VOCABULARY.labels))
    for row, (words, _) in enumerate(ROWS):
        alone = emissions(model, batch_of(row))
        torch.testing.assert_close(
            together[row : row + 1, : len(words)], alone, rtol=1e-4, atol=1e-5
        )


@torch.no_grad()
def test_words_after_it_are_seen_if_there_are_two_directions(config: TaggerConfig) -> None:
    model = build(config).eval()
    batch = batch_of(0)
    before = emissions(model, batch)
    changed = batch.words_BT.clone(), batch.spellings_BT.clone()
    for tensor in changed:
        tensor[0, 2] = tensor[0, 1]
    after = model.emissions(*changed, batch.characters_UC, batch.lengths_B)
    assert not torch.allclose(before[0, 4], after[0, 4])
    assert torch.allclose(before[0, 0], after[0, 0]) is not config.bidirectional


def test_it_learns_a_batch_by_heart(config: TaggerConfig) -> None:
    model = build(config).eval()  # a tiny model has nothing to spare for dropout
    batch = batch_of(0, 1, 2)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(40):
        optimiser.zero_grad()
        outcome = tagging(model, batch, None)
        outcome.loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    assert outcome.num_targets == 8
    assert outcome.state is None
    assert not [name for name, p in model.named_parameters() if p.grad is None]
    with torch.no_grad():
        best_BT = model.best(emissions(model, batch), batch.mask())
    expected = batch.labels_BT.clamp(min=0) * batch.mask()
    assert torch.equal(best_BT, expected)


def test_it_repeats_under_a_seed(config: TaggerConfig) -> None:
    def loss() -> Tensor:
        torch.manual_seed(4)
        return tagging(build(config).train(), batch_of(0, 1), None).loss.detach()

    assert torch.equal(loss(), loss())


def test_rare_words_are_read_as_unknown_more_often() -> None:
    model = build(TaggerConfig(**SMALL, word_dropout=1.0))
    assert model.unknown_rate_V[VOCABULARY.word_id("the")] == pytest.approx(1 / 3)
    assert model.unknown_rate_V[VOCABULARY.word_id("cat")] == pytest.approx(1 / 2)


TEXTS = [[3, 1, 4, 1, 5], [2, 7], [6]]
CLASSIFIERS = {
    "max": ClassifierConfig(hidden_size=6, embedding_size=5),
    "last": ClassifierConfig(hidden_size=6, embedding_size=5, pooling=("last",)),
    "last of one direction": ClassifierConfig(
        hidden_size=6, embedding_size=5, pooling=("last",), bidirectional=False
    ),
    "mean, attention": ClassifierConfig(
        hidden_size=6, embedding_size=5, pooling=("mean", "attention"), merge="sum", cell="gru"
    ),
}


@pytest.fixture(params=CLASSIFIERS)
def classifier(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(2)
    return CLASSIFIERS[request.param].build(8, 3)


@torch.no_grad()
def test_classifiers_are_blind_to_padding(classifier: Any) -> None:
    classifier.eval()
    batch = labelled_batch(TEXTS, [0, 1, 2])
    together = classifier(batch.tokens_BT, batch.lengths_B)
    for row, text in enumerate(TEXTS):
        alone = labelled_batch([text], [0])
        found = classifier(alone.tokens_BT, alone.lengths_B)
        torch.testing.assert_close(found[0], together[row], rtol=1e-4, atol=1e-5)


def test_classifiers_learn_a_batch_by_heart(classifier: Any) -> None:
    batch = labelled_batch(TEXTS, [2, 0, 1])
    optimiser = torch.optim.Adam(classifier.parameters(), lr=0.05)
    for _ in range(30):
        optimiser.zero_grad()
        outcome = classification(ClassificationConfig(), classifier.train(), None, batch, None)
        outcome.loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    assert outcome.num_targets == 3
    assert not [name for name, p in classifier.named_parameters() if p.grad is None]
    with torch.no_grad():
        found = classifier.eval()(batch.tokens_BT, batch.lengths_B)
    assert found.argmax(1).tolist() == [2, 0, 1]


@pytest.fixture(params=CLASSIFIERS)
def comparer(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(2)
    return CLASSIFIERS[request.param].build(8, 3, pairs=True)


PAIRS = [(TEXTS[0], TEXTS[1]), (TEXTS[2], TEXTS[0]), (TEXTS[1], TEXTS[2])]


@torch.no_grad()
def test_classifiers_of_pairs_are_blind_to_padding(comparer: Any) -> None:
    comparer.eval()

    def scores(batch: Any) -> torch.Tensor:
        found: torch.Tensor = comparer(batch.tokens_BT, batch.lengths_B, None, batch.second)
        return found

    batch = batch_of_rows(PAIRS, [0, 1, 2])
    assert batch.num_rows == batch.num_targets == 3
    assert batch.num_tokens == 2 * sum(map(len, TEXTS))
    together = scores(batch)
    for row, pair in enumerate(PAIRS):
        alone = scores(batch_of_rows([pair], [0]))
        torch.testing.assert_close(alone[0], together[row], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(scores(batch.rows(slice(row, row + 1))), alone)


def test_classifiers_of_pairs_learn_a_batch_by_heart(comparer: Any) -> None:
    batch = batch_of_rows(PAIRS, [2, 0, 1])
    optimiser = torch.optim.Adam(comparer.parameters(), lr=0.02)
    for _ in range(40):
        optimiser.zero_grad()
        outcome = classification(ClassificationConfig(), comparer.train(), None, batch, None)
        outcome.loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    assert not [name for name, p in comparer.named_parameters() if p.grad is None]
    with torch.no_grad():
        found = comparer.eval()(batch.tokens_BT, batch.lengths_B, None, batch.second)
    assert found.argmax(1).tolist() == [2, 0, 1]


@torch.no_grad()
def test_pairs_are_compared_as_in_infersent() -> None:
    torch.manual_seed(3)
    model = ClassifierConfig(hidden_size=6, embedding_size=5, joint_size=7).build(8, 3, pairs=True)
    batch = batch_of_rows(PAIRS, [0, 1, 2])
    assert batch.second is not None
    u, v = (model.eval().encode(b.tokens_BT, b.lengths_B) for b in (batch, batch.second))
    features = torch.cat([u, v, (u - v).abs(), u * v], dim=1)
    hidden = (features @ model.joint.weight.T + model.joint.bias).clamp(min=0)
    expected = hidden @ model.output.weight.T + model.output.bias
    found = model(batch.tokens_BT, batch.lengths_B, None, batch.second)
    torch.testing.assert_close(found, expected)


def test_class_weights_make_rare_labels_count() -> None:
    torch.manual_seed(0)
    model = CLASSIFIERS["max"].build(8, 2).eval()
    batch = labelled_batch(TEXTS, [0, 0, 1])
    config = ClassificationConfig()
    plain = classification(config, model, None, batch, None)
    weighted = classification(config, model, torch.tensor([0.0, 3.0]), batch, None)
    alone = classification(config, model, None, labelled_batch(TEXTS[2:], [1]), None)
    torch.testing.assert_close(weighted.loss, alone.loss)
    torch.testing.assert_close(weighted.nats, plain.nats)
