"""Large tensors as whole numbers of steps, for small packs (`packing.py`).

Compression leaves each number the bits that it needs, so it is the steps that decide the size. The
average of the weights, which is what is measured, has small ones. Of each other tensor of a weight
(the last one, the best one, a second average) the distance from it is stored, in steps of half the
usual distance: noise that is small beside what the next updates change. Squares of gradients are
stored as powers of the square root of 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

LARGE = 4096
"""Numbers in a tensor that is worth it."""
PER_SIZE, PER_DISTANCE, PER_OCTAVE = 128, 2, 2
"""Steps in the usual (root mean squared) size of a number and of a distance, and between a square
and its double."""
SMALLEST = 64
"""A step of a distance is at least the usual size of a number divided by this."""
SQUARES, MEANS = "exp_avg_sq", "exp_avg"
"""Endings of the names of an optimiser's means of squared gradients and of gradients."""


class Steps:
    """Rounds tensors; the first ones of a shape are what later ones are near to."""

    def __init__(self) -> None:
        self._bases: dict[tuple[int, ...], list[tuple[dict[str, Any], Tensor]]] = {}
        """By shape, the tensors that are stored by themselves, as they will be restored."""

    def round(self, name: str, tensor: Tensor, entry: dict[str, Any]) -> Tensor:
        """Return whole numbers; add to `entry` what they count."""
        tensor = tensor.double()
        if name.endswith(SQUARES):
            entry |= {"as": "int16", "per_octave": PER_OCTAVE}
            return (tensor.clamp(min=2.0**-1000).log2() * PER_OCTAVE).round().to(torch.int16)
        size = _usual(tensor)
        bases = self._bases.setdefault(tuple(tensor.shape), [])
        distances = [_usual(tensor - base) for _, base in bases]
        is_mean = name.endswith(MEANS)
        is_base = is_mean or not distances or min(distances) >= size
        step = size / (PER_DISTANCE if is_mean else PER_SIZE)
        if not is_base:
            distance = min(distances)
            entry["beside"], base = bases[distances.index(distance)]
            step = max(distance / PER_DISTANCE, size / SMALLEST)
            tensor = tensor - base
        step = max(step, float(tensor.abs().max()) / torch.iinfo(torch.int16).max) or 1.0
        counts = (tensor / step).round()
        entry |= {"step": step, "as": "int8" if float(counts.abs().max()) < 128 else "int16"}
        if is_base and not is_mean:
            bases.append((dict(entry), counts * step))
        return counts.to(getattr(torch, entry["as"]))


def restored(counts: Tensor, entry: Mapping[str, Any]) -> Tensor:
    """Undo `round`, but for what the tensor is stored beside."""
    if (per_octave := entry.get("per_octave")) is not None:
        return (counts.double() / float(per_octave)).exp2()
    return counts.double() * float(entry["step"])


def _usual(tensor: Tensor) -> float:
    return float(tensor.square().mean().sqrt())
