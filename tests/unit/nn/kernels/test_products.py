"""The choice of a product: measured once, kept, and restored from a train state."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from elman.nn.cells import LSTMCell
from elman.nn.kernels import Purpose, mkl, plan, planning, products

pytestmark = pytest.mark.skipif(bool(mkl.onednn_problem()), reason="oneDNN is not callable here")


@pytest.fixture(autouse=True)
def _nothing_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_chosen", {})
    monkeypatch.setattr(products, "_file", lambda: tmp_path / "products.json")


def test_measures_once_per_class_and_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = products.fastest(16, 64, 256)
    assert found in (products.MKL, products.ONEDNN)
    monkeypatch.setattr(products, "_measured", lambda *sizes: pytest.fail("measured again"))
    assert products.fastest(17, 60, 250) == found  # the same powers of two
    products._chosen.clear()
    assert products.fastest(16, 64, 256) == found  # from the file
    assert products.choices() == {"16x64x256": found}


def test_what_another_process_chose_meanwhile_is_followed() -> None:
    def choose() -> str:
        products._keep("layer", "by rows")  # the other process
        return "by units"

    assert products.kept_or("layer", choose, ("by rows", "by units")) == "by rows"
    assert products.kept_or("other", lambda: "by units", ("by units",)) == "by units"


def test_a_damaged_file_is_measured_again(tmp_path: Path) -> None:
    (tmp_path / "products.json").write_text("{")
    assert products.fastest(16, 64, 256) in (products.MKL, products.ONEDNN)


def test_restores_what_a_run_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    for product in (products.MKL, products.ONEDNN):
        products.restore({"16x64x256": product, "8x8x8": "abacus"})
        assert products.fastest(16, 64, 256) == product
    assert "8x8x8" not in products.choices()
    monkeypatch.setattr(mkl, "onednn_problem", lambda: "none here")
    products.restore({"32x64x256": products.ONEDNN})
    assert "32x64x256" not in products.choices()
    assert products.fastest(16, 64, 256) == products.MKL


def test_tiny_products_are_not_measured() -> None:
    assert products.fastest(1, 8, 32) == products.MKL
    assert products.choices() == {}


def test_plans_follow_restored_products() -> None:
    """A resumed run validates, and so plans, before its train state is read."""
    cell, limits = LSTMCell(8, 256), planning.KernelLimits(num_threads=1, timed_work=1 << 60)
    for product in (products.MKL, products.ONEDNN):
        planning.restore_products({"32x256x1024": product})
        planned = plan(
            cell,
            device=torch.device("cpu"),
            dtype=torch.float32,
            shape=(32, 128, 8),
            purpose=Purpose.TRAINING,
            limits=limits,
        )
        assert planned.products == product
    planning._decide.cache_clear()


@pytest.mark.parametrize("name", mkl.ONEDNN_LIMITS)
def test_choices_depend_on_what_limits_onednn(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(name, raising=False)
    before = mkl.facts()
    monkeypatch.setenv(name, "AVX2")
    limited = mkl.facts()
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    assert before != limited != mkl.facts()
