"""`training.reset_state`: lanes forget their state at random, before a chunk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from elman import testing
from elman.nn.state import State
from elman.recipes.resolve import resolve
from elman.recipes.run import train
from elman.tasks.language_model.task import _forget
from elman.testing import TOY_TEXT
from elman.train import loop
from tiny_models import TINY

SMALL = {
    "model.hidden_size": 6,
    "model.embedding_size": 5,
    "model.tied": False,
    "training.batch_size": 4,
    "training.chunk_length": 8,
    "training.sample_length": 0,
    "model.dropout_input": 0,  # a mask that drops all of a lane leaves its state as it was
}


@pytest.mark.parametrize("name", ["lstm", "sru", "rnn and maxent", "window"])
def test_a_row_forgets_all_or_nothing(name: str) -> None:
    torch.manual_seed(0)
    model = testing.build(TINY[name])
    tokens_BT = testing.some_tokens(400, 5)
    with torch.no_grad():
        _, state = model.logprobs(tokens_BT, tokens_BT, model.initial_state(400))
    fresh = model.initial_state(400).flatten()
    after = _forget(model, 0.3, state).flatten()
    kept = {key: (after[key] == old).all(1) for key, old in state.flatten().items()}
    forgot = {key: (after[key] == fresh[key]).all(1) for key in after}
    rows = next(iter(forgot.values()))
    assert all(torch.equal(found, rows) for found in forgot.values())
    assert all(bool((found | rows).all()) for found in kept.values())
    assert 0.2 < float(rows.double().mean()) < 0.4


def carried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, probability: float) -> list[Any]:
    """Train a little; return what each update's objective read as the state."""
    (tmp_path / "text.txt").write_text(TOY_TEXT)
    settings = {**SMALL, "training.reset_state": probability}
    config = resolve("lm", [str(tmp_path / "text.txt")], settings=settings, steps=4).config
    read: list[State | None] = []
    fit = loop.fit

    def spying(trainable: Any, *arguments: Any, **options: Any) -> Any:
        def objective(batch: Any, state: State | None) -> Any:
            read.append(state)
            return trainable.objective(batch, state)

        yield from fit(replace(trainable, objective=objective), *arguments, **options)

    monkeypatch.setattr(loop, "fit", spying)
    list(train(config, tmp_path / "run", device="cpu"))
    assert len(read) == 4
    return [] if read[1] is None else [s.flatten() for s in read[1:] if s is not None]


def test_updates_read_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = carried(tmp_path, monkeypatch, 1 - 1e-9)
    assert states
    assert not any(bool(tensor.any()) for state in states for tensor in state.values())


def test_without_it_every_lane_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = carried(tmp_path, monkeypatch, 0.0)
    assert all(bool(tensor.any(1).all()) for state in states for tensor in state.values())
