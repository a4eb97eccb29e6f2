"""The result of an objective for one batch."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from elman.nn.state import State


@dataclass(frozen=True)
class Outcome:
    """The loss of one batch and the state after it."""

    loss: Tensor
    """The scalar to minimise: mean nats per target that counts, plus penalties."""
    nats: Tensor
    """The detached sum of the targets' losses, without penalties."""
    num_targets: int
    """Number of targets that counted."""
    state: State | None = None
    """The model's state after the batch; None if nothing is carried to the next one."""
