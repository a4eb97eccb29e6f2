"""`elman bench scans`: every scan gives the states and gradients of a loop."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from elman.bench import scans as bench
from elman.bench.sizes import Size

SMALL = Size(8, 2, 9)


def test_a_row_for_each_peer(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)  # as if it were not installed
    rows = list(bench.measure([SMALL], 1, "cpu"))
    assert [row.name for row in rows] == [
        "scan beside log space",
        "scan beside torch's associative_scan, generic",
    ]
    for row in rows:
        assert row.error is not None
        assert row.peer_error is not None
        assert max(row.error, row.peer_error) < 1e-5
        assert row.ratio == pytest.approx(row.peer / row.ours)
    said = "no row beside jax.lax.associative_scan: jax is not installed"
    assert said in capsys.readouterr().err


def test_beside_jax() -> None:
    pytest.importorskip("jax")
    inputs = bench.Inputs.drawn(SMALL, "cpu")
    exact = inputs.exact()
    side = bench._jax(inputs, exact)
    found = bench._joined(side.work(), exact.device)
    torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-5)


def test_a_mode_with_wrong_gradients_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "LARGEST_ERROR", 1e-12)
    inputs = bench.Inputs.drawn(SMALL, "cpu")
    with pytest.raises(bench.Absent, match="generic: its results or gradients are wrong, by"):
        bench._torch(inputs, inputs.exact())


@pytest.mark.gpu
def test_called_and_graphed() -> None:
    rows = list(bench.measure([Size(64, 4, 32)], 1, "cuda"))
    names = [row.name for row in rows if "jax" not in row.name]
    assert names[:2] == ["scan beside log space", "scan beside log space, graphed"]
    for row in rows:
        assert row.error is not None
        assert row.error < 1e-5
        assert row.settings["kernel"] == "scan: one launch"
