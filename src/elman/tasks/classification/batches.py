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
    """Texts side by side."""

    tokens_BT: Tensor
    """Token ids, 0 beyond a text."""
    lengths_B: Tensor
    """Tokens of each text, on the processor."""
    labels_B: Tensor
    """Label ids."""
    wording: Wording | None = None
    """The words as they are spelled, for models that look them up elsewhere."""
    fresh: bool = True
    """Texts stand alone."""

    @property
    def num_rows(self) -> int:
        """How many texts."""
        return len(self.lengths_B)

    @property
    def num_tokens(self) -> int:
        """How many tokens."""
        return int(self.lengths_B.sum())

    @property
    def num_targets(self) -> int:
        """How many labels: one a text."""
        return self.num_rows

    def rows(self, rows: slice) -> LabelledBatch:
        """Some of the texts."""
        lengths_B = self.lengths_B[rows]
        tokens_BT = self.tokens_BT[rows, : int(lengths_B.max())]
        wording = None if self.wording is None else self.wording[rows]
        return LabelledBatch(tokens_BT, lengths_B, self.labels_B[rows], wording)

    def to(self, device: str) -> LabelledBatch:
        """The same batch on another device; lengths stay, where packing wants them."""
        return LabelledBatch(
            self.tokens_BT.to(device, non_blocking=True),
            self.lengths_B,
            self.labels_B.to(device, non_blocking=True),
            self.wording,
        )


def labelled_batch(
    texts: Sequence[ArrayLike], labels: Sequence[int], spelled: Sequence[Spelled] | None = None
) -> LabelledBatch:
    """A batch of texts, none of them empty; with `spelled`, the same as words, it has a wording."""
    tokens_BT, mask_BT = pad(texts)
    wording = None if spelled is None else Wording.of(spelled)
    return LabelledBatch(tokens_BT, mask_BT.sum(1), torch.tensor(labels), wording)
