"""Teacher forcing: the cross-entropy of each next token, averaged over time steps.

The model reads the true tokens, whatever it would have predicted itself, and is judged by the
probability that it gave to the true next one. Two penalties on the hidden vectors, activation
regularisation and its temporal sister (Merity, McCann and Socher 2017), can be added. With label
smoothing (Szegedy and others, 2016) a little of what is asked for goes to all words alike, which
keeps translators from being too sure of themselves.

B batch, T time steps, N targets that count, V vocabulary, H hidden.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from elman.batches.batch import Batch
from elman.batches.conditional import ConditionalBatch
from elman.models.interface import Hidden, NeuralLanguageModel
from elman.nn.state import State
from elman.objectives.objective_config import ObjectiveConfig

Texts = Batch | ConditionalBatch
"""Tokens and targets: lanes of running text, or texts that each depend on something."""


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
    config: ObjectiveConfig, model: NeuralLanguageModel, batch: Texts, state: State | None
) -> Outcome:
    """Score `batch` from `state`, or from the model's initial state where there is none."""
    if state is None:
        state = model.initial_state(batch.tokens_BT.shape[0])
    hidden, state = model.hidden(batch.tokens_BT, state)
    return scored(config, model, batch, hidden, state)


def scored(
    config: ObjectiveConfig,
    model: NeuralLanguageModel,
    batch: Texts,
    hidden: Hidden,
    state: State,
) -> Outcome:
    """The same where the hidden vectors are known, and the state after them."""
    total, nats = _losses(config.label_smoothing, model, hidden, batch)
    num_targets = batch.num_targets
    loss = total / max(1, num_targets) + penalties(config, hidden, batch.mask_BT)
    return Outcome(loss, nats.detach(), num_targets, state)


def _losses(
    smoothing: float, model: NeuralLanguageModel, hidden: Hidden, batch: Texts
) -> tuple[Tensor, Tensor]:
    """Sums over the targets that count: of what is to be minimised, and of their nats."""
    if not smoothing:
        losses_BT = model.head.losses(
            hidden.dropped_BTH, batch.targets_BT, hidden.contexts_BTO
        ).float()
        if batch.mask_BT is not None:
            losses_BT = losses_BT.where(batch.mask_BT, 0.0)
        nats = losses_BT.sum()
        return nats, nats
    counted = slice(None) if batch.mask_BT is None else batch.mask_BT
    hidden_NH = hidden.dropped_BTH[counted].flatten(0, -2)
    targets_N = batch.targets_BT[counted].flatten()
    contexts = hidden.contexts_BTO
    contexts_NO = None if contexts is None else contexts[counted].flatten(0, -2)
    logprobs_NV = model.head.logprobs_all(hidden_NH, contexts_NO).float()
    nats = -logprobs_NV.gather(1, targets_N[:, None]).sum()
    uniform = -logprobs_NV.mean(dim=1).sum()
    return (1 - smoothing) * nats + smoothing * uniform, nats


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
