"""Precision and products: chosen by measuring, recorded with the train state, restored by it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from elman.models.recurrent import RecurrentLMConfig
from elman.nn.kernels import blocks, products
from elman.nn.layer import halves_pay
from elman.train import updating
from elman.train.optimisers import OptimiserConfig
from elman.train.ranks import Ranks
from elman.train.training_config import LaneTrainingConfig, TrainingConfig
from elman.train.updating import Updater

needs_bfloat16 = pytest.mark.skipif(bool(blocks.problem()), reason="no products in bfloat16 here")


def updater(precision: str) -> Updater:
    """An updater, as far as arithmetic goes."""
    made = Updater.__new__(Updater)
    made.training = LaneTrainingConfig(precision=precision)  # type: ignore[arg-type]
    made.device, made.is_bf16 = torch.device("cpu"), precision == "bf16"
    return made


@needs_bfloat16
def test_a_resumed_run_computes_as_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_chosen", {})
    auto = updater("auto")
    auto.restore_arithmetic({"precision": "bf16", "products": {"16x64x256": "MKL"}})
    assert auto.arithmetic() == {"precision": "bf16", "products": {"16x64x256": "MKL"}}
    asked = updater("float32")
    asked.restore_arithmetic({"precision": "bf16"})
    assert not asked.is_bf16
    monkeypatch.setattr(updating.blocks, "problem", lambda: "another processor")
    other = updater("auto")
    other.restore_arithmetic({"precision": "bf16"})
    assert not other.is_bf16


@needs_bfloat16
@pytest.mark.parametrize("precision", ["bf16", "float32"])
def test_processes_that_train_together_compute_as_their_leader(
    bench, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    monkeypatch.setattr(products, "_chosen", {})
    monkeypatch.setattr(LaneTrainingConfig, "_halves_pay", lambda *_: precision == "float32")
    ranks = Ranks(1, 2)
    chosen = {"precision": precision, "products": {"16x64x256": "MKL"}}
    monkeypatch.setattr(ranks, "from_leader", lambda make: chosen)
    training, trainable = LaneTrainingConfig(precision="auto"), bench.task()
    parameters = list(trainable.model.parameters())
    made = Updater(trainable, parameters, OptimiserConfig(), training, ranks)
    assert made.arithmetic() == chosen


def test_states_of_earlier_versions_go_on_in_float32() -> None:
    made = updater("auto")
    made.is_bf16 = True
    made.restore_arithmetic({})
    assert not made.is_bf16


def test_auto_on_a_cpu_depends_on_task_and_model(monkeypatch: pytest.MonkeyPatch) -> None:
    small = RecurrentLMConfig(hidden_size=8, embedding_size=4).build(9)
    large = RecurrentLMConfig(hidden_size=512, embedding_size=64).build(9)
    gru = RecurrentLMConfig(cell="gru", hidden_size=512, embedding_size=64).build(9)
    lanes = LaneTrainingConfig(precision="auto", batch_size=32, chunk_length=128)
    assert not lanes.is_bf16("cpu", small)
    assert not lanes.is_bf16("cpu", gru)
    assert not TrainingConfig(precision="auto").is_bf16("cpu", large)
    assert lanes.is_bf16("cuda")
    assert TrainingConfig(precision="bf16").is_bf16("cpu", small)
    if not blocks.problem():
        for chosen in ("bfloat16", "float32"):

            def timed(layer: object, candidates: Mapping[str, Any], chosen: str = chosen) -> str:
                return chosen if chosen in candidates else next(iter(candidates))

            monkeypatch.setattr("elman.nn.kernels.timing.fastest", timed)
            assert lanes.is_bf16("cpu", large) == (chosen == "bfloat16")
            assert halves_pay(large, 32, 128) == (chosen == "bfloat16")
