"""The one thing that data hands to an objective.

B batch, T time steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


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
    def num_tokens(self) -> int:
        """How many targets count."""
        return self.targets_BT.numel() if self.mask_BT is None else int(self.mask_BT.sum())

    def to(self, device: str) -> Batch:
        """The same batch on another device."""
        mask = None if self.mask_BT is None else self.mask_BT.to(device, non_blocking=True)
        return Batch(
            self.tokens_BT.to(device, non_blocking=True),
            self.targets_BT.to(device, non_blocking=True),
            mask,
            self.fresh,
        )
