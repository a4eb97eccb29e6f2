"""Batches of texts with one label each.

B batch, T time steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from elman.batches.buckets import pad
from elman.batches.wording import Spelled, Wording


@dataclass(frozen=True)
class LabelledBatch:
    """Padded texts."""

    tokens_BT: Tensor
    """Token ids; 0 for padding."""
    lengths_B: Tensor
    """Tokens of each text, on the CPU."""
    labels_B: Tensor
    wording: Wording | None = None
    """The words as text, for pre-trained embeddings."""
    fresh: bool = True
    """Texts are independent: no state is carried to the next batch."""

    @property
    def num_rows(self) -> int:
        return len(self.lengths_B)

    @property
    def num_tokens(self) -> int:
        return int(self.lengths_B.sum())

    @property
    def num_targets(self) -> int:
        return self.num_rows

    def rows(self, rows: slice) -> LabelledBatch:
        lengths_B = self.lengths_B[rows]
        tokens_BT = self.tokens_BT[rows, : int(lengths_B.max())]
        wording = None if self.wording is None else self.wording[rows]
        return LabelledBatch(tokens_BT, lengths_B, self.labels_B[rows], wording)

    def to(self, device: str) -> LabelledBatch:
        """Move the batch to a device, except the lengths: packing needs those on the CPU."""
        return LabelledBatch(
            self.tokens_BT.to(device, non_blocking=True),
            self.lengths_B,
            self.labels_B.to(device, non_blocking=True),
            self.wording,
        )


def labelled_batch(
    texts: Sequence[ArrayLike], labels: Sequence[int], spelled: Sequence[Spelled] | None = None
) -> LabelledBatch:
    """Make a batch of non-empty texts; with `spelled`, their words, it has a wording."""
    tokens_BT, mask_BT = pad(texts)
    wording = None if spelled is None else Wording.of(spelled)
    return LabelledBatch(tokens_BT, mask_BT.sum(1), torch.tensor(labels), wording)
