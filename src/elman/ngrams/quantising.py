"""Round numbers to the few values of a table, as KenLM's `build_binary -q -b` does.

The numbers are sorted and cut into bins of equal population; each bin is represented by its mean,
and each number by the nearest of the means. -inf, and the 0 of a back-off weight, are kept as they
are where they occur. Where a table has room for all distinct numbers, nothing is rounded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from elman.ngrams.interpolation import Floats

Codes = NDArray[np.uint32]
MOST_BITS = 24
"""A larger table would not be smaller than the numbers."""


def make_bins(values: Floats, bits: int, *, keep_zero: bool = False) -> Floats:
    """(2 ** bits,) the values to round to, in increasing order; the last one fills the table."""
    size, ordered = 1 << bits, np.sort(values)
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])[: len(ordered)])
    if len(starts) <= size:
        found = ordered[starts]
    else:
        special = [value for value in (-np.inf, 0.0) if value in ordered[starts]]
        special = special if keep_zero else [value for value in special if value != 0]
        ordered = ordered[~np.isin(ordered, special)] if special else ordered
        number = size - len(special)
        edges = np.linspace(0, len(ordered), number + 1).astype(np.int64)
        sums = np.add.reduceat(ordered.astype(np.float64), edges[:-1])
        found = np.sort(np.concatenate([sums / np.diff(edges), special]))
    found = found.astype(np.float32) + np.float32(0)  # not -0
    return np.concatenate([found, np.full(size - len(found), found[-1] if len(found) else 0.0)])


def encode(values: Floats, bins: Floats) -> Codes:
    """(n,) the number of the nearest bin of each value."""
    with np.errstate(invalid="ignore"):
        middles = (bins[1:].astype(np.float64) + bins[:-1]) / 2
    return np.searchsorted(middles, values).astype(np.uint32)


def exact_codes(values: NDArray[Any]) -> Codes:
    """(n,) the bits of float32 numbers."""
    return np.ascontiguousarray(values, np.float32).view(np.uint32)
