"""The likelihood of the correct labels, averaged over words."""

from __future__ import annotations

from elman.nn.state import State
from elman.objectives.outcome import Outcome
from elman.tasks.tagging.batches import TaggedBatch
from elman.tasks.tagging.model import Tagger


def tagging(model: Tagger, batch: TaggedBatch, state: State | None) -> Outcome:
    """Compute the loss; sentences are independent, so there is no state."""
    emissions_BTN = model.emissions(
        batch.words_BT, batch.spellings_BT, batch.characters_UC, batch.lengths_B, batch.wording
    )
    nats = model.losses(emissions_BTN, batch.labels_BT, batch.mask()).sum()
    num_targets = batch.num_targets
    return Outcome(nats / max(1, num_targets), nats.detach(), num_targets)
