"""Updates replayed from static memory give what ordinary ones give, whatever the task.

Without a GPU: `Repeat` stands for a CUDA graph. It calls the work again on the memory of the first
call, which is all that a graph does.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from elman import testing
from elman.batches.batch import Batch, bucket_size
from elman.batches.conditional import conditional_batch
from elman.nn.character_cnn import CharacterCNNConfig, spelling_table
from elman.nn.graphed import MOST_GRAPHS, Figures, GraphedUpdate, Result
from elman.nn.state import State
from elman.objectives.objective_config import RegimeConfig
from elman.objectives.outcome import Outcome
from elman.objectives.regimes import training_objective
from elman.tasks.classification.batches import batch_of_rows
from elman.tasks.classification.model import ClassifierConfig
from elman.tasks.classification.objective import ClassificationConfig, classification
from elman.tasks.conditional.model import ConditionalLMConfig
from elman.tasks.elmo.batches import Spellings
from elman.tasks.elmo.model import ElmoConfig, spelled
from elman.tasks.elmo.objective import bidirectional_likelihood
from elman.tasks.tagging.batches import encode_tagged, tagged_batch
from elman.tasks.tagging.model import TaggerConfig
from elman.tasks.tagging.objective import tagging
from elman.tasks.tagging.vocabulary import make_vocabulary
from tiny_models import TINY

WORDS = "the a dog cat mat Philadelphia sees runs under-the-table ."
CPU = torch.device("cpu")


@dataclass
class Repeat:
    """Calls work again instead of capturing it."""

    num_recorded: int = 0
    error: str = ""

    def here(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def run(self, work: Callable[[], Result]) -> Result:
        return work()

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        if self.error:
            raise RuntimeError(self.error)
        self.num_recorded += 1
        return work


def updates(model: nn.Module, objective: Callable[[Any, State | None], Outcome]) -> Any:
    """An update of plain gradient descent."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)

    def update(batch: Any, state: State | None) -> tuple[Figures, State | None]:
        optimiser.zero_grad(set_to_none=True)
        outcome = objective(batch, state)
        outcome.loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        after = None if outcome.state is None else outcome.state.detach()
        return (outcome.nats,), after

    return update


def tagger(output: Any = "crf", characters: Any = "cnn") -> tuple[nn.Module, Any, Any]:
    random = np.random.default_rng(1)
    words = WORDS.split()
    rows = [
        (list(chosen), [word[0] for word in chosen])
        for length in (1, 3, 3, 4, 5, 5, 7)
        for chosen in [random.choice(words, length)]
    ]
    vocabulary, counts = make_vocabulary(rows)
    data = encode_tagged(rows, vocabulary)
    table_SC = spelling_table(data.spellings, 24)
    config = TaggerConfig(
        hidden_size=5,
        embedding_size=4,
        character_size=4,
        output=output,
        characters=characters,
        character_cnn=CharacterCNNConfig(character_size=3, filters=(2, 2, 3), num_highway=0),
    )
    model = config.build(
        vocabulary.vocab_size, len(vocabulary.labels), counts_V=torch.tensor(counts)
    )

    def make(indices: list[int]) -> Any:
        return tagged_batch([data.sentences[i] for i in indices], table_SC)

    return model, partial(tagging, model), make


def classifier(pooling: Any = ("max", "mean", "attention", "last"), pairs: bool = False) -> Any:
    config = ClassifierConfig(hidden_size=4, embedding_size=3, pooling=pooling, joint_size=3)
    model = config.build(9, 3, pairs=pairs)
    texts = [[(3 * i + j) % 9 for j in range(length)] for i, length in enumerate((1, 2, 5, 6, 9))]
    rows = [[text, texts[-1 - i]] if pairs else [text] for i, text in enumerate(texts)]
    settings = ClassificationConfig(label_smoothing=0.1)
    objective = partial(classification, settings, model, torch.tensor([0.5, 1.0, 2.0]))

    def make(indices: list[int]) -> Any:
        return batch_of_rows([rows[i % 5] for i in indices], [i % 3 for i in indices])

    return model, objective, make


def elmo() -> Any:
    words = WORDS.split()
    config = ElmoConfig(
        hidden_size=6,
        projection_size=4,
        character_cnn=CharacterCNNConfig(
            character_size=3, filters=(2, 3, 2), max_characters=20, padding="read"
        ),
    )
    model = config.build(len(words) + 2)
    table_VC = spelled(["<S>", "</S>", "<eos>", "<unk>", *words], config.character_cnn).numpy()
    lengths_V = (table_VC != config.character_cnn.alphabet.padding).sum(1)
    spellings = Spellings(table_VC, lengths_V, 3, len(words), 0, 1)

    def make(indices: list[int]) -> Any:
        length = 2 + indices[0] % 3
        rows = [[2 + (i + j) % len(words) for j in range(length)] for i in indices]
        return partial(spellings.batch, np.array(rows))

    return model, partial(bidirectional_likelihood, model), make


def translator(name: str = "input feeding", smoothing: float = 0.1) -> Any:
    model = testing.build(TINY[name])
    objective = training_objective(RegimeConfig(label_smoothing=smoothing), model, end_id=2)

    def make(indices: list[int]) -> Any:
        sources = [[3 + (i + j) % 5 for j in range(1 + i % 7)] for i in indices]
        longest = max(map(len, sources))
        source_BS = torch.tensor([source + [0] * (longest - len(source)) for source in sources])
        mask_BS = torch.arange(longest) < torch.tensor([[len(source)] for source in sources])
        texts = [[3 + (i * j) % 5 for j in range(1 + (3 * i) % 11)] for i in indices]
        return conditional_batch((source_BS, mask_BS), texts, 2, num_padded=2)

    return model, objective, make


def conditional() -> Any:
    model = ConditionalLMConfig(labels=("a", "b")).build(9)
    objective = training_objective(RegimeConfig(activation_penalty=1.0), model, end_id=2)

    def make(indices: list[int]) -> Any:
        labels_B = torch.tensor([i % 2 for i in indices])
        return conditional_batch((labels_B,), [[3] * (1 + i % 9) for i in indices], 2)

    return model, objective, make


TASKS: dict[str, Callable[[], Any]] = {
    "tagger, crf": tagger,
    "tagger, softmax": partial(tagger, "softmax", "lstm"),
    "classifier": classifier,
    "classifier of pairs": partial(classifier, pairs=True),
    "elmo": elmo,
    "translator, input feeding": translator,
    "translator, one pass": partial(translator, "attention bilinear", 0.0),
    "conditional": conditional,
}


def both(made: Any) -> tuple[Any, Any]:
    """A batch as it is, and padded."""
    if isinstance(made, partial):
        return made(), made(bucketed=True)
    return made, made.bucketed()


@pytest.mark.parametrize("name", TASKS)
def test_padding_changes_neither_loss_nor_gradient(name: str) -> None:
    torch.manual_seed(0)
    model, objective, make = TASKS[name]()
    model.eval()
    for indices in ([1, 4], [0, 1, 2], [4, 2, 3, 1, 0], [3]):
        plain, padded = both(make(indices))
        found = []
        for batch in (plain, padded):
            model.zero_grad()
            outcome = objective(batch, None)
            outcome.loss.backward()
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            assert batch.num_tokens == plain.num_tokens
            assert batch.num_targets == plain.num_targets
            found.append([outcome.loss.detach(), outcome.nats, *(g.clone() for g in gradients)])
        torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", TASKS)
def test_replayed_updates_equal_ordinary_ones(name: str) -> None:
    random = np.random.default_rng(3)
    orders = [random.choice(5, 1 + n % 3, replace=False).tolist() for n in range(40)]
    figures = []
    for replayed in (False, True):
        torch.manual_seed(0)
        model, objective, make = TASKS[name]()
        advance = updates(model.eval(), objective)
        if replayed:
            advance = GraphedUpdate(advance, None, CPU, capture := Repeat())
        figures.append([advance(both(make(order))[replayed], None)[0][0] for order in orders])
    torch.testing.assert_close(figures[1], figures[0], rtol=1e-3, atol=1e-5)
    assert 0 < capture.num_recorded == len(advance.captured) < 30
    assert 10 < advance.num_replayed < advance.num_updates == 40
    assert f"{advance.num_replayed} of 40 replayed from CUDA graphs" in advance.describe()


def language_model_update() -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = testing.build(TINY["lstm"]).eval()
    return model, updates(model, training_objective(RegimeConfig(), model))


def test_a_state_is_carried_from_replay_to_replay() -> None:
    ids_BT = torch.randint(0, testing.VOCAB_SIZE, (2, 91), generator=torch.manual_seed(1))
    chunks = [
        Batch(ids_BT[:, t : t + 6], ids_BT[:, t + 1 : t + 7], fresh=t == 0) for t in range(0, 84, 6)
    ]
    found = []
    for replayed in (False, True):
        model, advance = language_model_update()
        if replayed:
            advance = GraphedUpdate(advance, model.initial_state, CPU, Repeat())
        state, nats = None, []
        for chunk in chunks:
            (figure,), state = advance(chunk, state)
            nats.append(figure)
        found.append((nats, state.flatten()))
    torch.testing.assert_close(found[1], found[0])
    assert advance.num_replayed == len(chunks) - 3


def test_what_cannot_be_captured_keeps_running() -> None:
    model, objective, make = translator()
    advance = GraphedUpdate(updates(model, objective), None, CPU, Repeat(error="a sync\nat ..."))
    figures = [advance(make([1, 2]).bucketed(), None)[0][0] for _ in range(8)]
    assert all(bool(figure.isfinite()) for figure in figures)
    assert figures[-1] < figures[0]
    assert not advance.captured
    assert advance.describe() == "not replayed from a CUDA graph: a sync"


def test_no_more_graphs_than_fit() -> None:
    def update(batch: Any, state: State | None) -> tuple[Figures, State | None]:
        return (torch.zeros(()),), None

    advance = GraphedUpdate(update, None, CPU, Repeat())
    for length in range(1, MOST_GRAPHS + 20):
        ids_BT = torch.zeros(1, length, dtype=torch.long)
        for _ in range(3):
            advance(Batch(ids_BT, ids_BT), None)
    assert len(advance.captured) == MOST_GRAPHS


def test_batches_with_text_or_without_buckets_have_no_graph() -> None:
    _, _, make = tagger()
    batch = make([1, 2])
    assert batch.graph_key() is None
    assert batch.bucketed().graph_key() == make([2, 1]).bucketed().graph_key()
    assert batch.bucketed().graph_key() != make([6]).bucketed().graph_key()


@given(size=st.integers(1, 5000), per_octave=st.sampled_from([1, 2, 4, 8]))
def test_few_sizes_and_little_padding(size: int, per_octave: int) -> None:
    found = bucket_size(size, per_octave)
    assert size <= found < size * (1 + 2 / per_octave)
    assert bucket_size(found, per_octave) == found
    octave = {bucket_size(n, per_octave) for n in range(1025, 2049)}
    assert len(octave) == per_octave


def test_a_copy_has_its_own_memory() -> None:
    _, _, make = classifier(pairs=True)
    batch = make([1, 2]).bucketed()
    kept, other = batch.clone(), replace(make([3, 4]).bucketed())
    tensors: list[Tensor] = kept.tensors()
    assert not {t.data_ptr() for t in tensors} & {t.data_ptr() for t in batch.tensors()}
    if kept.graph_key() == other.graph_key():
        kept.copy_(other)
        torch.testing.assert_close(kept.tensors(), other.tensors())
