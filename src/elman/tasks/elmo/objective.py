"""The objective of ELMo: the mean likelihood of both directions."""

from __future__ import annotations

from elman.nn.state import State
from elman.objectives.outcome import Outcome
from elman.tasks.elmo.batches import BidirectionalBatch
from elman.tasks.elmo.model import BidirectionalLM


def bidirectional_likelihood(
    model: BidirectionalLM, batch: BidirectionalBatch, state: State | None
) -> Outcome:
    """Compute the loss; sentences are independent, so there is no state."""
    right, left = model.losses(batch.characters_UC, batch.places_BX, batch.targets_BX)
    nats = right.float().sum() + left.float().sum()
    return Outcome(nats / batch.num_targets, nats.detach(), batch.num_targets)
