"""Batches of texts that are conditioned on something: a source sentence, a picture, a label.

B batch, T time steps.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from elman.batches.batch import TensorBatch, bucket_size, padded
from elman.batches.buckets import pad


@dataclass(frozen=True)
class ConditionalBatch(TensorBatch):
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
    num_padded: int = 0
    """How many of `given`, from the first on, are sequences (B, S) that may be padded further,
    with zeros."""
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
        return replace(
            self,
            given=tuple(part[rows] for part in self.given),
            tokens_BT=self.tokens_BT[rows],
            targets_BT=self.targets_BT[rows],
            mask_BT=mask_BT,
            num_targets=int(mask_BT.sum()),
        )

    def to(self, device: str) -> ConditionalBatch:
        return replace(
            self,
            given=tuple(part.to(device, non_blocking=True) for part in self.given),
            tokens_BT=self.tokens_BT.to(device, non_blocking=True),
            targets_BT=self.targets_BT.to(device, non_blocking=True),
            mask_BT=self.mask_BT.to(device, non_blocking=True),
        )

    def graph_key(self) -> Hashable | None:
        """Return the shapes; None with words as text, which are looked up on the host."""
        only_tensors = all(isinstance(part, Tensor) for part in self.given)
        return super().graph_key() if only_tensors else None

    def bucketed(self) -> ConditionalBatch:
        """Pad to one of few shapes; the loss stays the same.

        The rows stay as they are, since pictures are normalised over the batch. A step of a source
        costs little, so its lengths are rounded more than those of a text.
        """
        num_rows, length = self.tokens_BT.shape
        size = num_rows, bucket_size(length)
        sources = [
            padded(part, num_rows, bucket_size(part.shape[1], 2))
            for part in self.given[: self.num_padded]
        ]
        return replace(
            self,
            given=(*sources, *self.given[self.num_padded :]),
            tokens_BT=padded(self.tokens_BT, *size),
            targets_BT=padded(self.targets_BT, *size),
            mask_BT=padded(self.mask_BT, *size),
        )


def conditional_batch(
    given: tuple[Any, ...], texts: Sequence[ArrayLike], boundary_id: int, *, num_padded: int = 0
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
        num_padded,
    )
