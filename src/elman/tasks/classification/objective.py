"""The cross-entropy of the right label, averaged over texts; rare labels may weigh more.

B batch, N labels.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from elman.nn.state import State
from elman.objectives.likelihood import Outcome
from elman.objectives.objective_config import ObjectiveConfig
from elman.tasks.classification.batches import LabelledBatch
from elman.tasks.classification.model import Classifier


def classification(
    config: ObjectiveConfig,
    model: Classifier,
    weights_N: Tensor | None,
    batch: LabelledBatch,
    state: State | None,
) -> Outcome:
    """Score a batch; `weights_N` are the labels', 1 on average over the training data."""
    logits_BN = model(batch.tokens_BT, batch.lengths_B, batch.wording)
    losses_B = F.cross_entropy(
        logits_BN, batch.labels_B, reduction="none", label_smoothing=config.label_smoothing
    )
    weighted_B = losses_B
    if weights_N is not None:
        weighted_B = losses_B * weights_N.to(losses_B.device)[batch.labels_B]
    return Outcome(weighted_B.mean(), losses_B.sum().detach(), batch.num_targets)
