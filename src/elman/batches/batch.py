"""The batch protocol of the training loop, and the batches of language models.

B batch, T time steps.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

from torch import Tensor

from elman.base.errors import ElmanError


class TaskBatch(Protocol):
    """What the training loop asks of a batch."""

    @property
    def num_rows(self) -> int:
        """Number of sequences."""
        ...

    @property
    def num_tokens(self) -> int:
        """Number of tokens read: the unit of speed and progress."""
        ...

    @property
    def num_targets(self) -> int:
        """Number of predictions that the loss is averaged over."""
        ...

    @property
    def fresh(self) -> bool:
        """True to start from the model's initial state, False to go on from the last batch's."""
        ...

    def rows(self, rows: slice) -> Self:
        """Return a batch of some of the sequences."""
        ...

    def to(self, device: str) -> Self:
        """Return a copy on `device`."""
        ...


@dataclass(frozen=True)
class Batch:
    """Tokens and targets of a language model."""

    tokens_BT: Tensor
    """Input, int64."""
    targets_BT: Tensor
    """The tokens to predict, int64, one step ahead of `tokens_BT`."""
    mask_BT: Tensor | None = None
    """True where a target counts; None if all do."""
    fresh: bool = False
    """True to start from the model's initial state, False to go on from the last batch's."""

    @property
    def num_rows(self) -> int:
        return self.tokens_BT.shape[0]

    @property
    def num_tokens(self) -> int:
        return self.targets_BT.numel() if self.mask_BT is None else int(self.mask_BT.sum())

    @property
    def num_targets(self) -> int:
        """As `num_tokens`: each token is predicted once."""
        return self.num_tokens

    def rows(self, rows: slice) -> Batch:
        mask = None if self.mask_BT is None else self.mask_BT[rows]
        return Batch(self.tokens_BT[rows], self.targets_BT[rows], mask, self.fresh)

    def to(self, device: str) -> Batch:
        mask = None if self.mask_BT is None else self.mask_BT.to(device, non_blocking=True)
        return Batch(
            self.tokens_BT.to(device, non_blocking=True),
            self.targets_BT.to(device, non_blocking=True),
            mask,
            self.fresh,
        )

    def graph_key(self) -> Hashable | None:
        """Return the shape; None with a mask, whose number of targets varies."""
        return tuple(self.tokens_BT.shape) if self.mask_BT is None else None

    def clone(self) -> Batch:
        return Batch(self.tokens_BT.clone(), self.targets_BT.clone(), fresh=self.fresh)

    def copy_(self, other: Batch) -> None:
        self.tokens_BT.copy_(other.tokens_BT, non_blocking=True)
        self.targets_BT.copy_(other.targets_BT, non_blocking=True)


def check_resumable(state: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Raise an error if a stream of batches was saved with other data or settings."""
    for name in state.keys() - settings.keys():
        if isinstance(state[name], int) and state[name] < 0:
            raise ValueError(f"{name} is {state[name]}")
    for name, value in settings.items():
        # States saved before a setting existed do not have it.
        if state.get(name, value) != value:
            raise ElmanError(
                f"cannot resume: {name} was {state[name]} and is now {value}",
                "resume with the same data and the same settings, or start a new run",
            )
