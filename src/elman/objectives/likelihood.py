"""Teacher forcing: the cross-entropy of each next token, averaged over time steps.

The model reads the true tokens, whatever it would have predicted itself, and is judged by the
probability that it gave to the true next one. Two penalties on the hidden vectors, activation
regularisation and its temporal sister (Merity, McCann and Socher 2017), can be added.

B batch, T time steps, H hidden.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from elman.batches.batch import Batch
from elman.models.interface import Hidden, NeuralLanguageModel
from elman.nn.state import State
from elman.objectives.config import ObjectiveConfig


@dataclass(frozen=True)
class Outcome:
    """What one batch gave."""

    loss: Tensor
    """The scalar to minimise: mean nats per target that counts, penalties added."""
    nats: Tensor
    """The sum of the targets' losses without penalties, cut off from the graph."""
    num_targets: int
    """How many targets counted."""
    state: State | None = None
    """Where the model's memory stands after the batch; None where the next one begins afresh."""


def likelihood(
    config: ObjectiveConfig, model: NeuralLanguageModel, batch: Batch, state: State | None
) -> Outcome:
    """Score `batch` from `state`, or from the model's initial state where there is none."""
    if state is None:
        state = model.initial_state(batch.tokens_BT.shape[0])
    hidden, state = model.hidden(batch.tokens_BT, state)
    return scored(config, model, batch, hidden, state)


def scored(
    config: ObjectiveConfig,
    model: NeuralLanguageModel,
    batch: Batch,
    hidden: Hidden,
    state: State,
) -> Outcome:
    """The same where the hidden vectors are known, and the state after them."""
    losses_BT = model.head.losses(hidden.dropped_BTH, batch.targets_BT, hidden.contexts_BTO).float()
    if batch.mask_BT is not None:
        losses_BT = losses_BT.where(batch.mask_BT, 0.0)
    num_tokens = batch.num_tokens
    nats = losses_BT.sum()
    loss = nats / max(1, num_tokens) + penalties(config, hidden, batch.mask_BT)
    return Outcome(loss, nats.detach(), num_tokens, state)


def penalties(config: ObjectiveConfig, hidden: Hidden, mask_BT: Tensor | None) -> Tensor | float:
    """Activation regularisation: on the output as the head sees it (dropped), on change before
    dropout.
    """
    total: Tensor | float = 0.0
    if config.activation_penalty:
        squares_BT = hidden.dropped_BTH.float().square().mean(dim=-1)
        total = total + config.activation_penalty * _mean(squares_BT, mask_BT)
    if config.change_penalty and hidden.raw_BTH.shape[1] > 1:
        changes_BT = hidden.raw_BTH.float().diff(dim=1).square().mean(dim=-1)
        mask = None if mask_BT is None else mask_BT[:, 1:] & mask_BT[:, :-1]
        total = total + config.change_penalty * _mean(changes_BT, mask)
    return total


def _mean(values_BT: Tensor, mask_BT: Tensor | None) -> Tensor:
    if mask_BT is None:
        return values_BT.mean()
    return (values_BT * mask_BT).sum() / mask_BT.sum().clamp(min=1)
