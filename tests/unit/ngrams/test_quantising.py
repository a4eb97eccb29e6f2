from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elman.ngrams.quantising import encode, make_bins

NUMBERS = st.floats(-60, 0, width=32)


@given(st.lists(NUMBERS, min_size=1, max_size=400), st.integers(2, 9), st.booleans())
def test_each_number_becomes_the_nearest_value_of_the_table(
    numbers: list[float], bits: int, keep_zero: bool
) -> None:
    values = np.array(numbers, np.float32)
    bins = make_bins(values, bits, keep_zero=keep_zero)
    assert bins.shape == (2**bits,)
    assert bins.dtype == np.float32
    assert (np.diff(bins) >= 0).all()
    found = bins[encode(values, bins)]
    errors = np.abs(found.astype(np.float64) - values)
    nearest = np.abs(bins.astype(np.float64)[:, None] - values).min(axis=0)
    assert (errors <= nearest + 1e-5).all()
    if len(np.unique(values)) <= 2**bits:
        assert np.array_equal(found, values)


def test_zero_weights_and_zero_probabilities_are_kept() -> None:
    values = np.concatenate([np.linspace(-9, -0.01, 1000), [0.0, -np.inf, 0.0]]).astype(np.float32)
    bins = make_bins(values, 4, keep_zero=True)
    found = bins[encode(values, bins)]
    assert (found[values == 0] == 0).all()
    assert np.array_equal(np.isneginf(found), np.isneginf(values))


def test_bins_have_equal_populations_and_their_means() -> None:
    values = np.random.default_rng(0).normal(-5, 2, 4096).astype(np.float32)
    bins = make_bins(values, 3)
    expected = np.sort(values).reshape(8, 512).mean(axis=1, dtype=np.float64)
    np.testing.assert_allclose(bins, expected, rtol=1e-6)
