"""Batches of texts that depend on something: a source sentence, a picture, a label.

B batch, T time steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from elman.batches.buckets import pad


@dataclass(frozen=True)
class ConditionalBatch:
    """Texts and what each of them depends on."""

    given: tuple[Any, ...]
    """What the model's `condition` takes, batch first: tensors, and what moves and is cut as they
    are."""
    tokens_BT: Tensor
    """What the decoder reads, int64: the boundary, then the text."""
    targets_BT: Tensor
    """What it should predict, int64: the text, then the boundary."""
    mask_BT: Tensor
    """True where a target counts."""
    num_targets: int
    """How many do."""
    fresh: bool = True
    """Texts stand alone: nothing is carried from one batch to the next."""

    @property
    def num_rows(self) -> int:
        """How many texts there are."""
        return self.tokens_BT.shape[0]

    @property
    def num_tokens(self) -> int:
        """How many tokens of them are read."""
        return self.num_targets

    def rows(self, rows: slice) -> ConditionalBatch:
        """The batch of some of its texts."""
        mask_BT = self.mask_BT[rows]
        return ConditionalBatch(
            tuple(part[rows] for part in self.given),
            self.tokens_BT[rows],
            self.targets_BT[rows],
            mask_BT,
            int(mask_BT.sum()),
        )

    def to(self, device: str) -> ConditionalBatch:
        """The same batch on another device."""
        return replace(
            self,
            given=tuple(part.to(device, non_blocking=True) for part in self.given),
            tokens_BT=self.tokens_BT.to(device, non_blocking=True),
            targets_BT=self.targets_BT.to(device, non_blocking=True),
            mask_BT=self.mask_BT.to(device, non_blocking=True),
        )


def conditional_batch(
    given: tuple[Any, ...], texts: Sequence[ArrayLike], boundary_id: int
) -> ConditionalBatch:
    """Texts, side by side, each begun and ended by the boundary token."""
    whole = [np.concatenate([[boundary_id], text, [boundary_id]]) for text in texts]
    padded_BT, mask_BT = pad(whole, boundary_id)
    return ConditionalBatch(
        given,
        padded_BT[:, :-1],
        padded_BT[:, 1:],
        mask_BT[:, 1:],
        sum(len(text) - 1 for text in whole),
    )
