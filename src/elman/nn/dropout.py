"""The kinds of dropout used in language models.

    dropout          each number by itself (Zaremba, Sutskever and Vinyals, 2014)
    locked dropout   one mask for all time steps of a sequence (Gal and Ghahramani, 2016)
    embedding        whole rows: a word is dropped throughout the batch (the same)
    weight drop      entries of the recurrent matrix, for a whole sequence (Merity and others, 2018)

All are functions of their input; no mask is stored on a module. What is kept is scaled by 1 / (1 -
p), so that expectations do not change.

B batch, T time steps, E embedding, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.nn.functional as F
from torch import Tensor, nn

from elman.nn.shapes import Float


class Dropout(nn.Module):
    """Dropout over (B, T, E), or over one step (B, E); locked in time or not."""

    def __init__(self, probability: float, *, locked: bool) -> None:
        super().__init__()
        self.probability = probability
        self.locked = locked

    def forward(self, inputs: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        if not self.training or self.probability == 0:
            return inputs
        if not self.locked or inputs.dim() < 3:
            return F.dropout(inputs, self.probability)
        return locked_dropout(inputs, self.probability)

    def mask(self, like_BTE: Float[Tensor, "B T E"]) -> Tensor | None:
        """Return what `forward` would multiply such inputs by: of all steps, or (B, 1, E)."""
        if not self.training or self.probability == 0:
            return None
        batch_size, num_steps, width = like_BTE.shape
        shape = (batch_size, 1 if self.locked else num_steps, width)
        return _mask(like_BTE, shape, self.probability)

    def extra_repr(self) -> str:
        return f"{self.probability}, locked={self.locked}"


def locked_dropout(
    inputs_BTE: Float[Tensor, "B T E"], probability: float
) -> Float[Tensor, "B T E"]:
    """Drop the same units at every time step of a sequence."""
    return inputs_BTE * _mask(inputs_BTE, (len(inputs_BTE), 1, inputs_BTE.shape[2]), probability)


def _mask(like: Tensor, shape: tuple[int, ...], probability: float) -> Tensor:
    """Dropout of ones, from the same random numbers, in two passes instead of four."""
    keep = 1 - probability
    return like.new_empty(shape).bernoulli_(keep).div_(keep)


def drop_rows(weight_VE: Float[Tensor, "V E"], probability: float) -> Float[Tensor, "V 1"]:
    """Return a mask that drops whole words, to multiply the vectors looked up in
    `weight_VE` with."""
    return _mask(weight_VE, (len(weight_VE), 1), probability)


def drop_weights(weight: Float[Tensor, "G P"], probability: float) -> Float[Tensor, "G P"]:
    """Return a copy of a recurrent matrix with dropped entries; gradients reach the original."""
    return F.dropout(weight, probability)


RATES = ("probability", "dropout", "weight_drop", "dropout_state")
"""Attributes of modules that are rates of dropout, where they are numbers."""


@contextmanager
def scaled(network: nn.Module, scale: float) -> Iterator[None]:
    """Multiply all rates of dropout of a network by `scale`, from 0 to 1, within the block."""
    found = [
        (module, name, rate)
        for module in network.modules()
        for name in RATES
        if isinstance(rate := vars(module).get(name), float)
    ]
    try:
        for module, name, rate in found:
            setattr(module, name, rate * scale)
        yield
    finally:
        for module, name, rate in found:
            setattr(module, name, rate)
