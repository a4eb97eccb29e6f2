"""What the tasks share that predict a text given something else: a picture, a label.

Their data is `Examples`: texts as ids, each with what it is given. They are learnt side by side,
those of like length together, and judged by how likely the true texts are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from elman.batches.buckets import SentenceBatches
from elman.batches.conditional import ConditionalBatch
from elman.evaluate.conditional import Prediction, evaluation_batches, predict
from elman.objectives.regimes import training_objective
from elman.runs.run_config import RunConfig
from elman.runs.run_folder import about, check_vocabulary, require
from elman.tasks import Opened
from elman.tokens.tokenizer import TOKENIZER_FILE, Tokenizer
from elman.train.trainable import Trainable, Validation

LIKELIHOOD = ("perplexity", "nats_per_token", "accuracy", "tokens")
"""What of a prediction belongs into a summary."""


class Examples(Protocol):
    """Texts, each with what it is given."""

    def __len__(self) -> int: ...

    @property
    def lengths(self) -> list[int]:
        """Tokens of each text, the mark that ends it included."""
        ...

    def first(self, number: int) -> Self:
        """The first so many."""
        ...

    def batch(self, boundary_id: int, indices: Sequence[int]) -> ConditionalBatch:
        """Some of them, and what they are given."""
        ...


E = TypeVar("E", bound=Examples)


def num_tokens(examples: Examples | None) -> int:
    """Tokens of all texts; 0 where there are none."""
    return 0 if examples is None else sum(examples.lengths)


def beginning(examples: E, limit: int | None) -> E:
    """The first texts with about so many tokens; all where it is None."""
    if limit is None:
        return examples
    ends = np.cumsum(examples.lengths)
    return examples.first(max(1, int(np.searchsorted(ends, limit, side="right"))))


def open_model(path: Path, config: RunConfig, header: Mapping[str, Any]) -> Opened:
    """The network of a run folder, weights to be loaded, and its tokenizer."""
    require(path, TOKENIZER_FILE)
    tokenizer = Tokenizer.load(path / TOKENIZER_FILE)
    check_vocabulary(path, tokenizer, header)
    return config.model.build(tokenizer.vocab_size), tokenizer


def build(
    config: RunConfig, tokenizer: Tokenizer, counts_V: NDArray[np.int64], num_texts: int
) -> nn.Module:
    """A model as it is at the start; `counts_V` says how often each token is to be predicted, the
    ends of the `num_texts` texts aside.
    """
    counts_V[tokenizer.boundary_id] = num_texts
    model: nn.Module = config.model.build(tokenizer.vocab_size, counts_V=torch.as_tensor(counts_V))
    return model


def likelihood(model: Any, tokenizer: Tokenizer, examples: Examples) -> Prediction:
    """How well the texts are predicted."""
    make = partial(examples.batch, tokenizer.boundary_id)
    return predict(model, evaluation_batches(make, examples.lengths))


def figures(found: Prediction) -> dict[str, Any]:
    """A prediction by the names of the summary."""
    return {name: getattr(found, name) for name in LIKELIHOOD}


def task(
    config: RunConfig,
    tokenizer: Tokenizer,
    model: Any,
    *,
    train: Examples,
    valid: Examples,
    test: Examples | None,
    num_probed: int,
    sample: Callable[[int], str],
) -> Trainable:
    """Texts of like length side by side, and their likelihood; `num_probed` go before training."""
    training, boundary_id = config.training, tokenizer.boundary_id

    def validate(examples: Examples) -> Validation:
        found = likelihood(model, tokenizer, examples)
        return Validation(found.nats_per_token, None, found.tokens)

    return Trainable(
        model=model,
        objective=training_objective(config.objective, model, end_id=boundary_id),
        batches=SentenceBatches(
            train.lengths,
            partial(train.batch, boundary_id),
            batch_size=training.batch_size,
            seed=training.seed,
        ),
        validate=lambda limit: validate(beginning(valid, limit)),
        valid_tokens=num_tokens(valid),
        probe=lambda: validate(valid.first(num_probed)).num_tokens,
        test_tokens=num_tokens(test),
        sample=sample if training.sample_length else None,
        exact=model.head.exact and config.objective.reads_truth,
        about=about(tokenizer),
    )
