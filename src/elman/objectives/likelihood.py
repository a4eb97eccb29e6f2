"""Teacher forcing: the cross-entropy of each next token, averaged over time steps.

The model reads the true tokens, whatever it would have predicted itself. Two penalties on the
hidden vectors can be added: activation regularisation and temporal activation regularisation
(Merity, McCann and Socher 2017). Label smoothing (Szegedy and others 2016) spreads part of each
target over the vocabulary, which keeps decoders from becoming overconfident.

B batch, T time steps, N targets that count, V vocabulary, H hidden.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor

from elman.batches.batch import Batch
from elman.batches.conditional import ConditionalBatch
from elman.models.interface import ConditionalModel, Hidden, NeuralLanguageModel
from elman.nn.state import State
from elman.objectives.objective_config import LikelihoodConfig
from elman.objectives.outcome import Outcome

Texts = Batch | ConditionalBatch
"""Tokens and targets: lanes of running text, or independent texts with a condition."""


def likelihood(
    config: LikelihoodConfig, model: NeuralLanguageModel, batch: Texts, state: State | None
) -> Outcome:
    """Score `batch` from `state`; None means the batch's own first state."""
    if state is None:
        state = first_state(model, batch)
    hidden, state = model.hidden(batch.tokens_BT, state)
    return scored(config, model, batch, hidden, state)


def first_state(model: NeuralLanguageModel, batch: Texts) -> State:
    """Return the model's initial state, or the state after reading the condition."""
    if isinstance(batch, ConditionalBatch):
        return cast(ConditionalModel, model).condition(*batch.given)
    return model.initial_state(batch.num_rows)


def scored(
    config: LikelihoodConfig,
    model: NeuralLanguageModel,
    batch: Texts,
    hidden: Hidden,
    state: State,
) -> Outcome:
    """Score `batch` from its hidden vectors and the state after it."""
    total, nats = _losses(config.label_smoothing, model, hidden, batch)
    num_targets, mask_BT = batch.num_targets, batch.mask_BT
    # From the mask, not the number: a CUDA graph is replayed with other masks.
    count = max(1, num_targets) if mask_BT is None else mask_BT.sum().clamp(min=1)
    loss = total / count + penalties(config, hidden, mask_BT)
    carried = None if isinstance(batch, ConditionalBatch) else state
    return Outcome(loss, nats.detach(), num_targets, carried)


def _losses(
    smoothing: float, model: NeuralLanguageModel, hidden: Hidden, batch: Texts
) -> tuple[Tensor, Tensor]:
    """Return sums over the targets that count: the smoothed losses, and their nats."""
    if not smoothing:
        losses_BT = model.head.losses(
            hidden.dropped_BTH, batch.targets_BT, hidden.contexts_BTO
        ).float()
        if batch.mask_BT is not None:
            losses_BT = losses_BT.where(batch.mask_BT, 0.0)
        nats = losses_BT.sum()
        return nats, nats
    mask_BT = batch.mask_BT
    # On a GPU all positions: the number of those that count would have to be waited for.
    counted = slice(None) if mask_BT is None or mask_BT.is_cuda else mask_BT
    hidden_NH = hidden.dropped_BTH[counted].flatten(0, -2)
    targets_N = batch.targets_BT[counted].flatten()
    contexts = hidden.contexts_BTO
    contexts_NO = None if contexts is None else contexts[counted].flatten(0, -2)
    losses_N, nats_N = model.head.smoothed_losses(hidden_NH, targets_N, smoothing, contexts_NO)
    if mask_BT is not None and mask_BT.is_cuda:
        losses_N, nats_N = (x.where(mask_BT.flatten(), 0.0) for x in (losses_N, nats_N))
    return losses_N.sum(), nats_N.sum()


def penalties(config: LikelihoodConfig, hidden: Hidden, mask_BT: Tensor | None) -> Tensor | float:
    """Penalise the size of the output after dropout and its change before dropout."""
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
