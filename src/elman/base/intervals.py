"""Estimates from a few numbers, with their 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

# Student's t: the 97.5 % points for 1, 2, 3, ... degrees of freedom.
_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


def interval(effects: Sequence[float]) -> tuple[float, float, float]:
    """The mean and its 95 % interval; one effect alone has an infinite one."""
    number = len(effects)
    if not number or any(map(math.isnan, effects)):
        return math.nan, math.nan, math.nan
    if len(set(effects)) == 1 and number > 1:
        return effects[0], effects[0], effects[0]  # infinity, too
    mean = sum(effects) / number
    if number == 1 or not math.isfinite(mean):
        return mean, -math.inf, math.inf
    variance = sum((effect - mean) ** 2 for effect in effects) / (number - 1)
    half = (_T[number - 2] if number - 2 < len(_T) else 1.96) * math.sqrt(variance / number)
    return mean, mean - half, mean + half


def share_interval(share: float, number: int) -> tuple[float, float]:
    """The interval of a share of `number` trials (Wilson, 1927)."""
    z = 1.96
    middle = share + z**2 / (2 * number)
    half = z * math.sqrt(share * (1 - share) / number + z**2 / (4 * number**2))
    scale = 1 + z**2 / number
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)
