"""Batches of texts that are conditioned on something: a source sentence, a picture, a label.

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
    """Texts and what each is conditioned on."""

    given: tuple[Any, ...]
    """Arguments of the model's `condition`, batch first: tensors, or objects with `to` and slices.
    """
    tokens_BT: Tensor
    """Input of the decoder, int64: the boundary, then the text."""
    targets_BT: Tensor
    """The tokens to predict, int64: the text, then the boundary."""
    mask_BT: Tensor
    """True where a target counts."""
    num_targets: int
    """Number of targets that count."""
    fresh: bool = True
    """Texts are independent: no state is carried to the next batch."""

    @property
    def num_rows(self) -> int:
        return self.tokens_BT.shape[0]

    @property
    def num_tokens(self) -> int:
        return self.num_targets

    def rows(self, rows: slice) -> ConditionalBatch:
        mask_BT = self.mask_BT[rows]
        return ConditionalBatch(
            tuple(part[rows] for part in self.given),
            self.tokens_BT[rows],
            self.targets_BT[rows],
            mask_BT,
            int(mask_BT.sum()),
        )

    def to(self, device: str) -> ConditionalBatch:
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
    """Pad texts into one batch; the boundary token begins and ends each of them."""
    whole = [np.concatenate([[boundary_id], text, [boundary_id]]) for text in texts]
    padded_BT, mask_BT = pad(whole, boundary_id)
    return ConditionalBatch(
        given,
        padded_BT[:, :-1],
        padded_BT[:, 1:],
        mask_BT[:, 1:],
        sum(len(text) - 1 for text in whole),
    )
