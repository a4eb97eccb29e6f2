"""What data hands to an objective: tokens and targets for language models, and for other tasks
whatever batch of theirs says the same about itself.

B batch, T time steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Self

from torch import Tensor


class TaskBatch(Protocol):
    """What the training loop asks of a batch, whatever is in it."""

    @property
    def num_rows(self) -> int:
        """How many sequences it has."""
        ...

    @property
    def num_tokens(self) -> int:
        """How many tokens are read: what speed and progress are counted in."""
        ...

    @property
    def num_targets(self) -> int:
        """How many predictions the loss is a mean over."""
        ...

    @property
    def fresh(self) -> bool:
        """Whether the model starts from its initial state here, not from the previous batch's."""
        ...

    def rows(self, rows: slice) -> Self:
        """The batch of some of its sequences."""
        ...

    def to(self, device: str) -> Self:
        """The same batch on another device."""
        ...


@dataclass(frozen=True)
class Batch:
    """Tokens, the tokens that follow them, and which of those count."""

    tokens_BT: Tensor
    """What the model reads, int64."""
    targets_BT: Tensor
    """What it should predict, int64, one step ahead of `tokens_BT`."""
    mask_BT: Tensor | None = None
    """True where a target counts; None where all do."""
    fresh: bool = False
    """Whether the model starts from its initial state here, not from the previous batch's."""

    @property
    def num_rows(self) -> int:
        """How many lanes it has."""
        return self.tokens_BT.shape[0]

    @property
    def num_tokens(self) -> int:
        """How many targets count."""
        return self.targets_BT.numel() if self.mask_BT is None else int(self.mask_BT.sum())

    @property
    def num_targets(self) -> int:
        """The same: each token is predicted once."""
        return self.num_tokens

    def rows(self, rows: slice) -> Batch:
        """The batch of some of its lanes."""
        mask = None if self.mask_BT is None else self.mask_BT[rows]
        return Batch(self.tokens_BT[rows], self.targets_BT[rows], mask, self.fresh)

    def to(self, device: str) -> Batch:
        """The same batch on another device."""
        mask = None if self.mask_BT is None else self.mask_BT.to(device, non_blocking=True)
        return Batch(
            self.tokens_BT.to(device, non_blocking=True),
            self.targets_BT.to(device, non_blocking=True),
            mask,
            self.fresh,
        )
