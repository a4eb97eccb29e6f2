"""Batches of texts with one label each.

B batch, T time steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from elman.batches.buckets import SentenceBatch, pad
from elman.batches.wording import Spelled, Wording


@dataclass(frozen=True, kw_only=True)
class LabelledBatch(SentenceBatch):
    """Padded texts."""

    tokens_BT: Tensor
    """Token ids; 0 for padding."""
    labels_B: Tensor


def labelled_batch(
    texts: Sequence[ArrayLike], labels: Sequence[int], spelled: Sequence[Spelled] | None = None
) -> LabelledBatch:
    """Make a batch of non-empty texts; with `spelled`, their words, it has a wording."""
    tokens_BT, mask_BT = pad(texts)
    wording = None if spelled is None else Wording.of(spelled)
    return LabelledBatch(
        tokens_BT=tokens_BT,
        lengths_B=mask_BT.sum(1),
        labels_B=torch.tensor(labels),
        wording=wording,
    )
