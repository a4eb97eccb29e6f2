"""The input of the training loop: the model, the objective and the data, and their protocols.

A `Trainable` is a model, an objective, an endless source of batches and a way to validate. The loop
knows no model class, no task and no training regime.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, runtime_checkable

from torch import nn
from torch.nn import Parameter

from elman.batches.batch import TaskBatch
from elman.nn.state import State
from elman.objectives.outcome import Outcome


class Batches(Protocol):
    """An endless source of training batches whose position can be saved."""

    @property
    def epoch(self) -> int:
        """Number of completed epochs."""
        ...

    @property
    def tokens_per_epoch(self) -> int: ...

    def __next__(self) -> TaskBatch: ...

    def state_dict(self) -> dict[str, Any]:
        """Return the position as JSON values."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a position."""
        ...


@runtime_checkable
class StatefulObjective(Protocol):
    """An objective that follows the progress of training, or has trained modules of its own."""

    def __call__(self, batch: Any, state: State | None) -> Outcome: ...

    def modules(self) -> Mapping[str, nn.Module]:
        """Return modules to train beside the model, by name. The train state has them, the model
        file has not.
        """
        ...

    def begin_update(self, progress: float) -> None:
        """Prepare for an update; `progress` is the finished part of the training, 0 to 1."""
        ...


class Unfreezing(Protocol):
    """A schedule that unfreezes parts of the model during training."""

    @property
    def groups(self) -> Sequence[tuple[Sequence[Parameter], float]]:
        """Parameters that belong together, and their learning rate as a share of the model's."""
        ...

    def begin_update(self, epochs: float) -> bool:
        """Unfreeze what is due after `epochs` epochs; return True if anything changed."""
        ...


@dataclass(frozen=True)
class Validation:
    """Results on the validation data."""

    nats_per_token: float | None
    """Mean surprisal of a token; None if no text is predicted."""
    bits_per_byte: float | None
    """The same per byte of text, if known."""
    num_tokens: int
    """Number of tokens measured."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The task's own metrics by name (accuracy, F1, BLEU), higher is better. The first one decides
    which model is the best, and the surprisal if it is equal; without metrics the surprisal does.
    """
    oov: int | None = None
    """Number of tokens that are unknown to the tokenizer, where they are counted."""
    by_surprisal: bool = False
    """Let the surprisal decide although there are metrics."""

    @property
    def criterion(self) -> float:
        """The number that the best model minimises."""
        for value in () if self.by_surprisal else self.metrics.values():
            return -value
        assert self.nats_per_token is not None, "a task without a metric predicts text"
        return self.nats_per_token

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for the header of the model file."""
        values = asdict(self)
        del values["by_surprisal"]
        if not self.metrics:
            del values["metrics"]
        if self.oov is None:
            del values["oov"]
        return values


@dataclass(frozen=True, kw_only=True)
class Trainable:
    """What is trained, on which data, and how it is validated."""

    model: nn.Module
    """Already on its device."""
    objective: Callable[[Any, State | None], Outcome]
    """Computes the loss of a batch from the state before it (None: the initial state). It may be a
    `StatefulObjective`.
    """
    batches: Batches
    """The training data."""
    validate: Callable[[int | None], Validation]
    """Measures the model on the first n validation tokens (None: on all)."""
    valid_tokens: int
    """Number of validation tokens."""
    probe: Callable[[], int]
    """Runs one validation batch and returns its number of tokens."""
    test_tokens: int = 0
    """Number of test tokens, evaluated after the loop; time is reserved for them."""
    closing: Callable[[], Mapping[str, Any]] | None = None
    """Measures the best model after the loop; the result joins the summary."""
    closing_tokens: int = 0
    """Number of tokens that `closing` evaluates; time is reserved for them."""
    sample: Callable[[int], str] | None = None
    """Generates text from a seed, to be shown after each validation."""
    unfreezing: Unfreezing | None = None
    """Unfreezes parts of the model during training."""
    rate_factor: Callable[[Any], float] | None = None
    """What the learning rate of a batch is multiplied by."""
    graphed: bool = False
    """Whether updates on CUDA are captured in graphs, for batches that are `Replayable`; the
    objective must not change between updates then, nor wait for the device.
    """
    initial_state: Callable[[int], State] | None = None
    """The state that None stands for, by batch size, if a state is carried."""
    forget: Callable[[State], State] | None = None
    """Changes the carried state before an update, at random."""
    has_learnt: bool = False
    """Whether the model has been trained before: it is validated before the first update, and kept
    if no later one is better.
    """
    exact: bool = True
    """Whether the loss is the likelihood of a text, so that its exponential is a perplexity."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Written into the header of the model file."""
