"""The choice between plans of a layer: timed once, kept, restored, and executed as planned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch

from elman.nn.cells import LSTMCell
from elman.nn.kernels import (
    KernelLimits,
    Purpose,
    kernel_limits,
    mkl,
    plan,
    planning,
    products,
    timing,
)
from elman.nn.kernels.timing import Candidate, Layer
from elman.nn.stack import Stack, StackConfig, executed_plans

pytestmark = pytest.mark.skipif(not mkl.available(), reason="no compiled loops here")
TORCH = "torch: its LSTM layer"


@pytest.fixture(autouse=True)
def _nothing_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(products, "_chosen", {})
    monkeypatch.setattr(products, "_file", lambda: tmp_path / "products.json")
    planning._decide.cache_clear()
    yield
    planning._decide.cache_clear()


def scoring(limits: KernelLimits) -> str:
    with torch.no_grad():
        planned = plan(
            LSTMCell(8, 24),
            device=torch.device("cpu"),
            dtype=torch.float32,
            shape=(20, 5, 8),
            purpose=Purpose.SCORING,
            limits=limits,
        )
    return planned.describe()


def test_large_layers_are_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def measured(layer: Layer, candidates: Mapping[str, Candidate]) -> str:
        asked.append((layer, list(candidates)))
        return TORCH

    monkeypatch.setattr(timing, "_measured", measured)
    limits = KernelLimits(smallest_work=0, timed_work=0, num_threads=2)
    assert scoring(limits) == TORCH
    ((layer, names),) = asked
    assert layer.rounded() == Layer(20, 16, 8, 24, trains=False, num_threads=2)
    assert {name.split(",")[0] for name in names} == {"cpu: compiled loop", TORCH}
    planning._decide.cache_clear()
    products._chosen.clear()
    assert scoring(limits) == TORCH  # from the file
    assert len(asked) == 1
    assert scoring(KernelLimits(smallest_work=0, num_threads=2)).startswith("cpu")  # small


def test_what_ran_is_what_the_plan_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_measured", lambda layer, candidates: TORCH)
    stack = Stack(StackConfig(hidden_size=24), 8)
    with kernel_limits(smallest_work=0, timed_work=0, num_threads=2):
        assert executed_plans(stack, 20, 5) == {"layers.0": TORCH}


def test_timing_changes_no_random_numbers_and_chooses_a_candidate() -> None:
    limits = KernelLimits(smallest_work=0, timed_work=0, num_threads=2)
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    cell = LSTMCell(8, 24)
    torch.manual_seed(0)
    found = plan(
        cell,
        device=torch.device("cpu"),
        dtype=torch.float32,
        shape=(20, 5, 8),
        purpose=Purpose.TRAINING,
        limits=limits,
    )
    assert torch.rand(3).equal(expected)
    assert found.kernel in ("cpu", "torch")
    assert any(name.startswith(products.OF_LAYERS) for name in products.choices())


def test_resumed_runs_choose_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = KernelLimits(smallest_work=0, timed_work=0, num_threads=2)
    monkeypatch.setattr(timing, "_measured", lambda layer, candidates: TORCH)
    assert scoring(limits) == TORCH
    chosen = products.choices()
    products._chosen.clear()
    monkeypatch.setattr(products, "_kept", lambda name: None)
    monkeypatch.setattr(timing, "_measured", lambda layer, candidates: next(iter(candidates)))
    planning.restore_products(chosen)
    assert scoring(limits) == TORCH
    (name,) = (name for name in chosen if name.startswith(products.OF_LAYERS))
    planning.restore_products({name: "abacus: by hand"})
    assert scoring(limits).startswith("cpu")  # timed again


@pytest.mark.parametrize(
    ("batch_size", "num_steps", "hidden_size", "expected"),
    [
        (20, 35, 650, (20, 32)),
        (33, 128, 256, (40, 128)),
        (64, 128, 512, (64, 32)),
        (3, 9, 256, (3, 8)),
        (64, 128, 4096, (64, 8)),
        (30_000, 64, 256, (1024, 8)),
        (30_000, 64, 8, (32_768, 64)),
    ],
)
def test_sizes_are_rounded(
    batch_size: int, num_steps: int, hidden_size: int, expected: tuple[int, int]
) -> None:
    layer = Layer(batch_size, num_steps, hidden_size, hidden_size, True, 2).rounded()
    assert layer[:2] == expected
