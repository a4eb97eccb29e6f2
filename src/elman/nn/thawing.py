"""Layers of a pre-trained network that begin to learn one after the other, each at its own rate.

Gradual unfreezing and discriminative learning rates (Howard and Ruder, 2018): what a network knows
lies in layers from the general at the bottom to the particular at the top. The top layer is the
first to learn; those below join it one by one, and learn the more slowly the lower they lie.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch.nn import Parameter


class Thawing:
    """Groups of parameters, from the bottom to the top, and when and how fast each learns."""

    def __init__(
        self,
        groups: Sequence[Sequence[Parameter]],
        *,
        epochs_per_group: float,
        rate: float,
        rate_decay: float,
    ) -> None:
        self.groups = [list(group) for group in groups]
        depths = range(len(self.groups) - 1, -1, -1)
        self.rates = [rate / rate_decay**depth for depth in depths]
        """The learning rate of each, as a share of the model's own."""
        self.starts = [epochs_per_group * (depth + 1) for depth in depths]
        """The epochs, from 0, at which each begins to learn: the model beside them goes first."""

    def at(self, epochs: float) -> bool:
        """Let learn what should, so many epochs into the run; whether anything has changed.

        What does not learn has no gradient, and so optimisers leave it alone.
        """
        changed = False
        for group, start in zip(self.groups, self.starts, strict=True):
            for parameter in group:
                changed |= parameter.requires_grad != (epochs >= start)
                parameter.requires_grad_(epochs >= start)
        return changed
