"""Gradual unfreezing and discriminative learning rates for a pre-trained network.

Howard and Ruder (2018): the top layer is trained first, those below it join one after another, and
lower layers get a smaller learning rate.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch.nn import Parameter


class GradualUnfreezing:
    """Parameter groups, from bottom to top, with the start and the learning rate of each."""

    def __init__(
        self,
        groups: Sequence[Sequence[Parameter]],
        *,
        epochs_per_group: float,
        rate: float,
        rate_decay: float,
    ) -> None:
        depths = range(len(groups) - 1, -1, -1)
        self.groups = [
            (list(group), rate / rate_decay**depth)
            for group, depth in zip(groups, depths, strict=True)
        ]
        """The parameters of each group, and their learning rate as a share of the model's."""
        self.starts = [epochs_per_group * (depth + 1) for depth in depths]
        """The epoch at which each group is unfrozen; the rest of the model starts at 0."""

    def begin_update(self, epochs: float) -> bool:
        """Unfreeze the groups due after `epochs` epochs; return True if any changed.

        Frozen parameters have no gradient, so optimisers skip them.
        """
        changed = False
        for (group, _), start in zip(self.groups, self.starts, strict=True):
            for parameter in group:
                changed |= parameter.requires_grad != (epochs >= start)
                parameter.requires_grad_(epochs >= start)
        return changed
