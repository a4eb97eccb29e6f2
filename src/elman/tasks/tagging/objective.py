"""The likelihood of the correct labels, averaged over words."""

from __future__ import annotations

from elman.nn.state import State
from elman.objectives.outcome import Outcome
from elman.tasks.tagging.batches import TaggedBatch
from elman.tasks.tagging.model import Tagger


def tagging(model: Tagger, batch: TaggedBatch, state: State | None) -> Outcome:
    """Compute the loss; sentences are independent, so there is no state."""
    emissions_BTN = model.emissions(
        batch.words_BT, batch.spellings_BT, batch.characters_UC, batch.read_lengths, batch.wording
    )
    nats = batch.total(model.losses(emissions_BTN, batch.labels_BT, batch.mask()))
    num_words = batch.total(batch.read_lengths).clamp(min=1)
    return Outcome(nats / num_words, nats.detach(), batch.num_targets)
