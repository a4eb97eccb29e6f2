"""Functions inside the compiled loops, beside NumPy's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elman.nn.kernels import loops

pytest.importorskip("numba")

FLOATS = st.floats(width=32, allow_nan=False)


@given(st.lists(FLOATS, min_size=1, max_size=70))
def test_the_highest_of_a_row(values: list[float]) -> None:
    row = np.array(values, np.float32)
    assert loops.highest(row) == row.max()


def test_what_is_not_a_number_is_the_highest() -> None:
    assert np.isnan(loops.highest(np.array([1.0, np.nan, np.inf], np.float32)))


def test_machine_code_is_found_where_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops.numba.config, "CACHE_DIR", str(tmp_path))
    assert not loops.is_compiled()
    kept = loops._machine_code() / "kernels"
    kept.mkdir(parents=True)
    assert not loops.is_compiled()
    (kept / "step.1.nbc").touch()
    assert loops.is_compiled()


@pytest.mark.parametrize("has_tiles", [False, True])
def test_vectors_are_wide_with_tiles(has_tiles: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    binding = pytest.importorskip("llvmlite.binding")
    features = binding.get_host_cpu_features()
    features |= {"amx-tile": has_tiles, "avx512f": True}
    monkeypatch.setattr(binding, "get_host_cpu_features", lambda: features)
    chosen = loops.wide_vectors()
    if has_tiles:
        assert chosen is not None
        assert "+avx512f" in chosen
        assert chosen.endswith(",-prefer-256-bit")
    else:
        assert chosen is None
