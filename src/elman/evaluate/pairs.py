"""Minimal pairs and conditions: which sentence is less surprising, and by how much."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from elman.base.intervals import interval, share_interval

ROUNDING = 1e-6
"""The same tokens, read in different batches, may differ by this much."""


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """Items in two conditions, of which the `expected` one should be less surprising."""

    model: str
    group: str
    """The value of the column by which items are grouped; empty for all."""
    expected: str
    other: str
    items: int
    ties: int
    """Items whose two sentences are equally surprising."""
    accuracy: float
    """Share of items in which the expected sentence is less surprising; ties count as half."""
    accuracy_low: float
    accuracy_high: float
    """The 95 % interval (Wilson)."""
    difference: float
    """Mean over items of the surprisal of the other sentence minus that of the expected one."""
    low: float
    high: float
    """The 95 % interval over items (Student's t)."""


def contrast(
    pairs: Sequence[tuple[float, float]],
    *,
    model: str = "",
    group: str = "",
    expected: str = "good",
    other: str = "bad",
) -> Contrast:
    """Compare (expected, other) surprisals of items."""
    ties = sum(math.isclose(one, two, rel_tol=ROUNDING, abs_tol=ROUNDING) for one, two in pairs)
    right = sum(
        one < two and not math.isclose(one, two, rel_tol=ROUNDING, abs_tol=ROUNDING)
        for one, two in pairs
    )
    accuracy = (right + ties / 2) / len(pairs)
    accuracy_low, accuracy_high = share_interval(accuracy, len(pairs))
    # Equal infinities do not differ; their difference would be NaN.
    mean, low, high = interval([0.0 if one == two else two - one for one, two in pairs])
    return Contrast(
        model=model,
        group=group,
        expected=expected,
        other=other,
        items=len(pairs),
        ties=ties,
        accuracy=accuracy,
        accuracy_low=accuracy_low,
        accuracy_high=accuracy_high,
        difference=mean,
        low=low,
        high=high,
    )
