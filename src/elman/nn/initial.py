"""How parameters start, where it is not a layer's own choice."""

from __future__ import annotations

from torch import nn


def uniform_matrices(module: nn.Module, bound: float) -> None:
    """Every matrix uniform within plus or minus `bound` (Zaremba and others, 2014); no bias."""
    for parameter in module.parameters():
        if parameter.dim() > 1:
            nn.init.uniform_(parameter, -bound, bound)
