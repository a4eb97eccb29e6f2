"""Initial values of parameters that a layer does not choose itself."""

from __future__ import annotations

from torch import nn


def uniform_matrices(module: nn.Module, bound: float) -> None:
    """Draw every matrix uniformly from [-bound, bound] (Zaremba and others, 2014); biases stay."""
    for parameter in module.parameters():
        if parameter.dim() > 1:
            nn.init.uniform_(parameter, -bound, bound)
