"""Shared by tasks that generate text conditioned on something: a source, a picture, a label.

Their data is `Examples`: encoded texts, each with its condition. Training batches have texts of
similar length. Metrics are the likelihood of the true texts, and those of generated texts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elman.batches.buckets import SentenceBatches, batches_by_length
from elman.batches.conditional import ConditionalBatch
from elman.evaluate.conditional import Prediction, predict
from elman.evaluate.sequences import TOKENS_PER_BATCH
from elman.objectives.objective_config import RegimeConfig
from elman.objectives.regimes import training_objective
from elman.runs.run_folder import MODEL_FILE, TOKENIZER_FILE, about
from elman.runs.trained_run import TrainedRun
from elman.tasks.opening import checked_tokenizer
from elman.tasks.task import OpenedModel
from elman.tokens.tokenizer import Tokenizer
from elman.tokens.tokenizer_config import TokenizerConfig
from elman.train import checkpoint
from elman.train.trainable import Trainable, Validation
from elman.train.training_config import SamplingTrainingConfig

LIKELIHOOD = ("perplexity", "nats_per_token", "accuracy", "tokens")
"""The figures of a prediction in a summary."""


@dataclass(frozen=True, kw_only=True)
class ConditionedRun(TrainedRun):
    """A run of a model that generates text conditioned on something."""

    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    """How text becomes tokens."""
    objective: RegimeConfig = field(default_factory=RegimeConfig)
    """What is minimised."""
    training: SamplingTrainingConfig = field(default_factory=SamplingTrainingConfig)


class Examples(Protocol):
    """Encoded texts, each with its condition."""

    def __len__(self) -> int: ...

    @property
    def lengths(self) -> list[int]:
        """Tokens of each text, including the boundary at its end."""

    def first(self, number: int) -> Self: ...

    def batch(self, boundary_id: int, indices: Sequence[int]) -> ConditionalBatch: ...


E = TypeVar("E", bound=Examples)


def num_tokens(examples: Examples | None) -> int:
    """Tokens of all texts; 0 for None."""
    return 0 if examples is None else sum(examples.lengths)


def beginning(examples: E, limit: int | None) -> E:
    """The first texts, about `limit` tokens; None: all."""
    if limit is None:
        return examples
    ends = np.cumsum(examples.lengths)
    return examples.first(max(1, int(np.searchsorted(ends, limit, side="right"))))


def run_tokenizer(out: Path, resume: bool, train: Callable[[], Tokenizer]) -> Tokenizer:
    """Train a tokenizer and save it in the run folder `out`, or load it from there."""
    if resume:
        return checked_tokenizer(out, checkpoint.read_header(out / MODEL_FILE))
    tokenizer = train()
    tokenizer.save(out / TOKENIZER_FILE)
    return tokenizer


def open_model(path: Path, config: Any, header: Mapping[str, Any]) -> OpenedModel:
    tokenizer = checked_tokenizer(path, header)
    return partial(config.model.build, tokenizer.vocab_size), tokenizer


def target_counts(tokenizer: Tokenizer, counts_V: NDArray[np.int64], num_texts: int) -> Tensor:
    """How often each token is a target: its count, and for the boundary once per text."""
    counts_V = counts_V.copy()
    counts_V[tokenizer.boundary_id] = num_texts
    return torch.as_tensor(counts_V)


def likelihood(
    model: Any, tokenizer: Tokenizer, examples: Examples, lengths: Sequence[int] | None = None
) -> Prediction:
    """Measure the likelihood of the true texts, those of similar length together; by default
    `lengths` are numbers of tokens."""
    batches = batches_by_length(lengths or examples.lengths, TOKENS_PER_BATCH)
    make = partial(examples.batch, tokenizer.boundary_id)
    return predict(model, map(make, batches))


def figures(found: Prediction) -> dict[str, Any]:
    return {name: getattr(found, name) for name in LIKELIHOOD}


@dataclass(frozen=True)
class ConditionedData(ABC, Generic[E]):
    """The examples of a run, and how its model is trained and measured.

    A task adds how its model is built and described, and how it generates a text to show. It may
    measure more than the likelihood.
    """

    num_probed: ClassVar[int]
    """Texts that are validated before the first update."""

    config: Any
    tokenizer: Tokenizer
    """The tokenizer of the generated texts."""
    train: E
    valid: E
    test_examples: E | None

    @abstractmethod
    def draw(self, model: Any, seed: int) -> str:
        """Generate a text to show after a validation."""

    def validate(self, model: Any, examples: E) -> Validation:
        found = likelihood(model, self.tokenizer, examples)
        return Validation(found.nats_per_token, None, found.tokens)

    def measure(self, model: Any, examples: E) -> dict[str, Any]:
        """Figures of the test, by name."""
        return figures(likelihood(model, self.tokenizer, examples))

    def test(self, model: Any, limit: int | None) -> dict[str, Any]:
        assert self.test_examples is not None
        return self.measure(model, beginning(self.test_examples, limit))

    @property
    def about(self) -> dict[str, Any]:
        """Entries about the vocabulary for the header of the model file."""
        return about(self.tokenizer)

    @property
    def fitting(self) -> E:
        """The examples to train on."""
        return self.train

    def trainable(self, model: Any) -> Trainable:
        training, boundary_id = self.config.training, self.tokenizer.boundary_id
        objective = self.config.objective
        graphed = training.replays(model) and objective.is_teacher_forcing

        def make(indices: list[int]) -> ConditionalBatch:
            batch = self.fitting.batch(boundary_id, indices)
            return batch.bucketed() if graphed else batch

        return Trainable(
            model=model,
            objective=training_objective(objective, model, end_id=boundary_id),
            batches=SentenceBatches(
                self.fitting.lengths,
                make,
                batch_size=training.batch_size,
                seed=training.seed,
            ),
            validate=lambda limit: self.validate(model, beginning(self.valid, limit)),
            valid_tokens=num_tokens(self.valid),
            probe=lambda: self.validate(model, self.valid.first(self.num_probed)).num_tokens,
            test_tokens=num_tokens(self.test_examples),
            sample=partial(self.draw, model) if training.sample_length else None,
            graphed=graphed,
            exact=model.head.exact and objective.reads_truth,
            about=self.about,
        )
