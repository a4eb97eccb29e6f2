"""Functions inside the compiled loops, beside NumPy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elman.nn.kernels import loops

pytest.importorskip("numba")

FLOATS = st.floats(width=32, allow_nan=False)


@settings(deadline=None)
@given(st.lists(FLOATS, min_size=1, max_size=70))
def test_the_highest_of_a_row(values: list[float]) -> None:
    row = np.array(values, np.float32)
    assert loops.highest(row) == row.max()


def test_what_is_not_a_number_is_the_highest() -> None:
    assert np.isnan(loops.highest(np.array([1.0, np.nan, np.inf], np.float32)))
