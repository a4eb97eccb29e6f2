"""Updates replayed from static memory give what ordinary ones give, whatever the task.

Without a GPU: `Repeat` stands for a CUDA graph.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from elman import testing
from elman.batches.batch import Batch, bucket_size
from elman.nn.graphed import MOST_GRAPHS, Figures, GraphedUpdate
from elman.nn.state import State
from elman.objectives.objective_config import RegimeConfig
from elman.objectives.regimes import training_objective
from small_tasks import TASKS, both, classifier, tagger, uncompiled, updates
from stand_ins import Repeat
from tiny_models import TINY

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", TASKS)
def test_padding_changes_neither_loss_nor_gradient(name: str) -> None:
    torch.manual_seed(0)
    model, objective, make = TASKS[name]()
    uncompiled(model).double().eval()
    for indices in ([1, 4], [4, 2, 3, 1, 0]):
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


ORDERS = [[0], [1, 4], [3, 1], [0], [4, 1], [1, 3], [0], [1, 4]]
"""Rows of each update: shapes come again, mostly with other rows."""
VARIANTS = ("tagger, softmax", "classifier of pairs", "translator, one pass")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in VARIANTS)) for name in TASKS],
)
def test_replayed_updates_equal_ordinary_ones(name: str) -> None:
    figures = []
    for replayed in (False, True):
        torch.manual_seed(0)
        model, objective, make = TASKS[name]()
        advance = updates(uncompiled(model).double().eval(), objective)
        if replayed:
            advance = GraphedUpdate(advance, None, CPU, capture := Repeat())
        figures.append([advance(both(make(order))[replayed], None)[0][0] for order in ORDERS])
    torch.testing.assert_close(figures[1], figures[0], rtol=1e-3, atol=1e-5)
    assert 0 < capture.num_recorded == len(advance.captured) < advance.num_replayed
    assert 3 < advance.num_replayed < advance.num_calls == len(ORDERS)
    assert f"{advance.num_replayed} of 8 replayed from CUDA graphs" in advance.describe()


def language_model_update() -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = testing.build(TINY["lstm reference"]).double().eval()
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
    model, objective, make = classifier()
    advance = GraphedUpdate(
        updates(uncompiled(model).double(), objective), None, CPU, Repeat(error="a sync\nat ...")
    )
    figures = [advance(make([1, 2]).bucketed(), None)[0][0] for _ in range(6)]
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


def test_as_many_sizes_per_octave_as_asked_for() -> None:
    for per_octave in (1, 2, 4, 8):
        assert len({bucket_size(n, per_octave) for n in range(1025, 2049)}) == per_octave


def test_a_copy_has_its_own_memory() -> None:
    _, _, make = classifier(pairs=True)
    batch = make([1, 2]).bucketed()
    kept = batch.clone()
    tensors: list[Tensor] = kept.tensors()
    assert not {t.data_ptr() for t in tensors} & {t.data_ptr() for t in batch.tensors()}
    other = make([2, 1]).bucketed()
    assert kept.graph_key() == other.graph_key()
    kept.copy_(other)
    torch.testing.assert_close(kept.tensors(), other.tensors())
