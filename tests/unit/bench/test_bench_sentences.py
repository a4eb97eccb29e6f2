"""`elman bench sentences`: both sides compute the same loss, padded to few shapes or not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from elman.bench import sentences as bench
from elman.nn.kernels import blocks
from small_tasks import uncompiled


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "LENGTHS", (3,))
    monkeypatch.setattr(bench, "TRANSLATOR", (64, 128, 8))


def found(name: str) -> Any:
    compared = bench.TASKS[name](large=False)
    uncompiled(compared.model).double().train()
    compared.peer.double().train()
    return compared


@pytest.mark.parametrize("name", bench.TASKS)
def test_losses_of_both_sides_agree(name: str) -> None:
    compared = found(name)
    (batch,), (padded,) = compared.batches, compared.bucketed
    with torch.no_grad():
        loss = float(compared.peer_loss(batch))
        for read in (batch, padded):
            assert float(compared.objective(compared.model, read, None).loss) == pytest.approx(loss)
    assert padded.num_tokens == batch.num_tokens == compared.num_tokens


def test_a_row_has_both_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = found("classifier")
    monkeypatch.setitem(bench.TASKS, "classifier", lambda large: compared)
    (row,) = bench.measure(["classifier"], 1, "cpu")
    assert row.name == "classifier training step"
    assert row.unit == "words/s"
    assert row.settings["loss"] == pytest.approx(row.settings["peer_loss"])
    assert row.settings["tokens"] == compared.num_tokens


def test_a_cpu_compares_with_the_faster_precision_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    if problem := blocks.problem():
        pytest.skip(problem)
    monkeypatch.setattr(bench, "halves_pay", lambda *given: True)
    (row,) = bench.measure(["translator"], 1, "cpu")
    assert row.settings["dtype"] == "bfloat16"
    assert row.settings["peer_dtype"] in ("float32", "bfloat16")
    assert "products in bfloat16" in row.settings["kernel"]
    assert row.settings["loss"] == pytest.approx(row.settings["peer_loss"], rel=0.02)
