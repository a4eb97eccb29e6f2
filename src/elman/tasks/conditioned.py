"""What tasks share that generate text conditioned on something: a source, a picture, a label.

Their data is `Examples`: encoded texts, each with its condition. Training batches have texts of
similar length; models are measured by the likelihood of the true texts and by generated ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elman.batches.buckets import SentenceBatches
from elman.batches.conditional import ConditionalBatch
from elman.evaluate.conditional import Prediction, evaluation_batches, predict
from elman.objectives.objective_config import RegimeConfig
from elman.objectives.regimes import training_objective
from elman.runs.run_config import RunConfig
from elman.runs.run_folder import MODEL_FILE, TOKENIZER_FILE, about, check_vocabulary, require
from elman.runs.trained_run import TrainedRun
from elman.tasks.task import OpenedModel
from elman.tokens.tokenizer import Tokenizer
from elman.tokens.tokenizer_config import TokenizerConfig
from elman.train import checkpoint
from elman.train.trainable import Trainable, Unfreezing, Validation
from elman.train.training_config import SamplingTrainingConfig

LIKELIHOOD = ("perplexity", "nats_per_token", "accuracy", "tokens")
"""The figures of a prediction that a summary has."""


@dataclass(frozen=True, kw_only=True)
class ConditionedRun(TrainedRun):
    """A run of a model that generates text conditioned on something."""

    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    """How text becomes tokens."""
    objective: RegimeConfig = field(default_factory=RegimeConfig)
    """What is minimised."""
    training: SamplingTrainingConfig = field(default_factory=SamplingTrainingConfig)
    """The training loop."""


class Examples(Protocol):
    """Encoded texts, each with its condition."""

    def __len__(self) -> int: ...

    @property
    def lengths(self) -> list[int]:
        """Tokens of each text, the boundary at its end included."""
        ...

    def first(self, number: int) -> Self: ...

    def batch(self, boundary_id: int, indices: Sequence[int]) -> ConditionalBatch: ...


E = TypeVar("E", bound=Examples)


def num_tokens(examples: Examples | None) -> int:
    """Tokens of all texts; 0 for None."""
    return 0 if examples is None else sum(examples.lengths)


def beginning(examples: E, limit: int | None) -> E:
    """The first texts, with about `limit` tokens; None: all."""
    if limit is None:
        return examples
    ends = np.cumsum(examples.lengths)
    return examples.first(max(1, int(np.searchsorted(ends, limit, side="right"))))


def run_tokenizer(out: Path, resume: bool, train: Callable[[], Tokenizer]) -> Tokenizer:
    """Train a tokenizer and save it in the run folder `out`, or load it from there."""
    if resume:
        tokenizer = Tokenizer.load(out / TOKENIZER_FILE)
        check_vocabulary(out, tokenizer, checkpoint.read_header(out / MODEL_FILE))
    else:
        tokenizer = train()
        tokenizer.save(out / TOKENIZER_FILE)
    return tokenizer


def open_model(path: Path, config: RunConfig, header: Mapping[str, Any]) -> OpenedModel:
    require(path, TOKENIZER_FILE)
    tokenizer = Tokenizer.load(path / TOKENIZER_FILE)
    check_vocabulary(path, tokenizer, header)
    return config.model_config.build(tokenizer.vocab_size), tokenizer


def target_counts(tokenizer: Tokenizer, counts_V: NDArray[np.int64], num_texts: int) -> Tensor:
    """How often each token is predicted: as in the texts, and the boundary once for each text."""
    counts_V = counts_V.copy()
    counts_V[tokenizer.boundary_id] = num_texts
    return torch.as_tensor(counts_V)


def likelihood(model: Any, tokenizer: Tokenizer, examples: Examples) -> Prediction:
    """Measure how well the true texts are predicted."""
    make = partial(examples.batch, tokenizer.boundary_id)
    return predict(model, evaluation_batches(make, examples.lengths))


def figures(found: Prediction) -> dict[str, Any]:
    """The figures of a prediction by name."""
    return {name: getattr(found, name) for name in LIKELIHOOD}


def trainable(
    config: ConditionedRun,
    tokenizer: Tokenizer,
    model: Any,
    *,
    train: Examples,
    valid: E,
    test: Examples | None,
    num_probed: int,
    sample: Callable[[int], str],
    validate: Callable[[E], Validation] | None = None,
    unfreezing: Unfreezing | None = None,
) -> Trainable:
    """What the training loop works on; `num_probed` texts are validated before the first update.

    `validate` measures texts; default: by their likelihood alone.
    """
    training, boundary_id = config.training, tokenizer.boundary_id

    def measure(examples: E) -> Validation:
        if validate is not None:
            return validate(examples)
        found = likelihood(model, tokenizer, examples)
        return Validation(found.nats_per_token, None, found.tokens)

    return Trainable(
        model=model,
        objective=training_objective(config.objective, model, end_id=boundary_id),
        unfreezing=unfreezing,
        batches=SentenceBatches(
            train.lengths,
            partial(train.batch, boundary_id),
            batch_size=training.batch_size,
            seed=training.seed,
        ),
        validate=lambda limit: measure(beginning(valid, limit)),
        valid_tokens=num_tokens(valid),
        probe=lambda: measure(valid.first(num_probed)).num_tokens,
        test_tokens=num_tokens(test),
        sample=sample if training.sample_length else None,
        exact=model.head.exact and config.objective.reads_truth,
        about=about(tokenizer),
    )
