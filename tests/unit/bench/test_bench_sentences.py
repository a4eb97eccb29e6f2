"""`elman bench sentences`: both sides compute the same loss, padded to few shapes or not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from elman.bench import sentences as bench
from small_tasks import uncompiled


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "LENGTHS", (3,))
    monkeypatch.setattr(bench, "ROUNDS_FIRST", 1)


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
