"""Batches of texts, or of pairs of texts, with one label each.

B batch, T time steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elman.batches.buckets import SentenceBatch, pad
from elman.batches.wording import Spelled, Wording

Ids = Sequence[int] | NDArray[np.int64]
"""The tokens of a text."""


@dataclass(frozen=True, kw_only=True)
class LabelledBatch(SentenceBatch):
    """Padded texts."""

    tokens_BT: Tensor
    """Token ids; 0 for padding."""
    labels_B: Tensor
    second: LabelledBatch | None = None
    """The second text of each pair; None if rows are single texts."""

    @cached_property
    def num_tokens(self) -> int:
        return int(sum(self.lengths_B.tolist())) + (self.second.num_tokens if self.second else 0)

    def rows(self, rows: slice) -> Self:
        return replace(super().rows(rows), second=self.second and self.second.rows(rows))

    def to(self, device: str) -> Self:
        return replace(super().to(device), second=self.second and self.second.to(device))

    def bucketed(self) -> Self:
        return replace(super().bucketed(), second=self.second and self.second.bucketed())


def labelled_batch(
    texts: Sequence[Ids], labels: Sequence[int], spelled: Sequence[Spelled] | None = None
) -> LabelledBatch:
    """Make a batch of single, non-empty texts; with `spelled`, their words, it has a wording."""
    tokens_BT, _ = pad(texts)
    wording = None if spelled is None else Wording.of(spelled)
    return LabelledBatch(
        tokens_BT=tokens_BT,
        lengths_B=torch.tensor([len(text) for text in texts]),
        labels_B=torch.tensor(labels),
        wording=wording,
    )


def batch_of_rows(
    rows: Sequence[Sequence[Ids]],
    labels: Sequence[int],
    spelled: Sequence[Sequence[Spelled]] | None = None,
) -> LabelledBatch:
    """Make a batch of rows of one text each, or of two."""
    batch: LabelledBatch | None = None
    for place in reversed(range(len(rows[0]))):
        words = None if spelled is None else [row[place] for row in spelled]
        batch = replace(labelled_batch([row[place] for row in rows], labels, words), second=batch)
    assert batch is not None
    return batch
