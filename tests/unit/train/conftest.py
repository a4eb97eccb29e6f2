"""A tiny model on a tiny text, with everything the loop needs around it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from elman.batches.batch import Batch
from elman.batches.encoded import EncodedText
from elman.batches.lanes import Lanes
from elman.evaluate.perplexity import evaluate
from elman.models.interface import Hidden
from elman.models.recurrent import RecurrentLMConfig
from elman.nn.state import State
from elman.objectives.likelihood import likelihood
from elman.objectives.objective_config import LikelihoodConfig
from elman.train.loop import fit
from elman.train.optimisers import OptimiserConfig
from elman.train.report import Report
from elman.train.schedules import ScheduleConfig
from elman.train.trainable import Trainable, Validation
from elman.train.training_config import LaneTrainingConfig

V = 12


def toy_text(num_tokens: int, seed: int) -> EncodedText:
    """Mostly counting upwards, with a jump now and then: easy to learn, impossible to know."""
    random = np.random.default_rng(seed)
    steps = np.where(random.random(num_tokens) < 0.9, 1, random.integers(V, size=num_tokens))
    return EncodedText(np.cumsum(steps) % V, num_bytes=num_tokens)


class PlainHead(nn.Linear):
    def losses(self, hidden: Tensor, targets: Tensor, contexts: None = None) -> Tensor:
        logprobs = self(hidden).float().log_softmax(dim=-1)
        return -logprobs.gather(-1, targets[..., None])[..., 0]


class PlainLM(nn.Module):
    """The least that can be trained, of torch's own parts: shape checks would make our own slow."""

    vocab_size = V

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.input = nn.Embedding(V, 8)
        self.layer = nn.LSTM(8, 8, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.head = PlainHead(8, V)

    def initial_state(self, batch_size: int) -> State:
        return State({"h": torch.zeros(batch_size, 8), "c": torch.zeros(batch_size, 8)})

    def hidden(self, tokens_BT: Tensor, state: State) -> tuple[Hidden, State]:
        before = (state.tensor("h")[None], state.tensor("c")[None])
        raw_BTH, (h, c) = self.layer(self.input(tokens_BT), before)
        return Hidden(self.dropout(raw_BTH), raw_BTH), State({"h": h[0], "c": c[0]})

    def logprobs(self, tokens_BT: Tensor, targets_BT: Tensor, state: State) -> Any:
        hidden, state = self.hidden(tokens_BT, state)
        return -self.head.losses(hidden.dropped_BTH, targets_BT), state


class Bench:
    """Makes tasks and runs them; settings that a test does not name are small and quick."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.training = LaneTrainingConfig(
            batch_size=4, chunk_length=8, steps=30, report_every=5, validate_every=10, clip_norm=1.0
        )
        self.optimiser = OptimiserConfig(kind="adam", learning_rate=0.01)
        self.schedule = ScheduleConfig(kind="cosine")
        self.objective = LikelihoodConfig()
        self.dropout = 0.2
        self.config: RecurrentLMConfig | None = None
        self.num_tokens = 600

    def task(self, **changes: Any) -> Trainable:
        torch.manual_seed(self.training.seed)
        model = PlainLM(self.dropout) if self.config is None else self.config.build(V)
        text, valid = toy_text(self.num_tokens, 0), toy_text(200, 1)

        def validate(limit: int | None) -> Validation:
            part = valid if limit is None else EncodedText(valid.ids[:limit], num_bytes=limit)
            found = evaluate(model, part, boundary_id=0, batch_size=2, overlap=4)
            return Validation(found.nats_per_token, found.bits_per_byte, found.tokens)

        chunk_length = self.training.chunk_length

        def rate_factor(batch: Batch) -> float:
            return batch.targets_BT.shape[1] / chunk_length

        task = Trainable(
            model=model,
            objective=partial(likelihood, self.objective, model),
            batches=Lanes(
                text,
                boundary_id=0,
                batch_size=self.training.batch_size,
                chunk_length=self.training.chunk_length,
                vary_chunks=self.training.vary_chunks,
                seed=self.training.seed,
            ),
            validate=validate,
            valid_tokens=200,
            probe=lambda: 50,
            sample=lambda seed: f"sample {seed}",
            rate_factor=rate_factor if self.training.vary_chunks else None,
        )
        return replace(task, **changes)

    def fit(
        self, name: str = "run", task: Trainable | None = None, **arguments: Any
    ) -> Iterator[Report]:
        return fit(
            task or self.task(),
            self.optimiser,
            self.schedule,
            self.training,
            self.folder / name,
            **arguments,
        )

    def change(self, **settings: Any) -> None:
        """Replace settings of the loop; a new length takes the place of the old."""
        if {"epochs", "minutes"} & settings.keys():
            settings = {"steps": None, **settings}
        self.training = replace(self.training, **settings)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def costing(self, seconds: float, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, taking `seconds` by this clock."""

        def timed(*arguments: Any) -> Any:
            self.now += seconds
            return function(*arguments)

        return timed


@pytest.fixture
def clock() -> Clock:
    return Clock()


FLOOR = math.log(V)
"""The loss of knowing nothing."""


@pytest.fixture
def floor() -> float:
    return FLOOR
