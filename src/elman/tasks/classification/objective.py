"""The cross-entropy of the correct label, averaged over texts; rare labels may weigh more.

B batch, N labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from elman.base.config import between
from elman.nn.state import State
from elman.objectives.outcome import Outcome
from elman.tasks.classification.batches import LabelledBatch
from elman.tasks.classification.model import Classifier


@dataclass(frozen=True, kw_only=True)
class ClassificationConfig:
    """What is minimised."""

    label_smoothing: float = 0.0
    """The share of each target that is spread evenly over all labels."""
    class_weights: Literal["none", "balanced"] = "none"
    """Whether all texts weigh the same, or all labels, however rare (balanced)."""

    def __post_init__(self) -> None:
        between("objective.label_smoothing", self.label_smoothing, 0, 1, below=True)


def classification(
    config: ClassificationConfig,
    model: Classifier,
    weights_N: Tensor | None,
    batch: LabelledBatch,
    state: State | None,
) -> Outcome:
    """Compute the loss; `weights_N` of the labels, on the batch's device, are 1 on average over
    the training data."""
    logits_BN = model(batch.tokens_BT, batch.read_lengths, batch.wording, batch.second)
    losses_B = F.cross_entropy(
        logits_BN, batch.labels_B, reduction="none", label_smoothing=config.label_smoothing
    )
    weighted_B = losses_B
    if weights_N is not None:
        weighted_B = losses_B * weights_N[batch.labels_B]
    return Outcome(batch.mean(weighted_B), batch.total(losses_B.detach()), batch.num_targets)
