"""The likelihood of sentences in both directions, as ELMo learns: the mean of the two."""

from __future__ import annotations

from elman.nn.state import State
from elman.objectives.outcome import Outcome
from elman.tasks.elmo.batches import BidirectionalBatch
from elman.tasks.elmo.model import BidirectionalLM


def bidirectional_likelihood(
    model: BidirectionalLM, batch: BidirectionalBatch, state: State | None
) -> Outcome:
    """Nats per target, forward and backward alike; sentences stand alone, and carry no state."""
    right, left = model.losses(batch.characters_UC, batch.places_BX, batch.targets_BX)
    nats = right.float().sum() + left.float().sum()
    return Outcome(nats / batch.num_targets, nats.detach(), batch.num_targets)
