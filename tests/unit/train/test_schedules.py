from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elman.train.schedules import ScheduleConfig, num_reductions, rate_factor


def factor(
    config: ScheduleConfig, progress: float = 0.0, step: int = 10**6, epoch: int = 0
) -> float:
    return rate_factor(config, progress=progress, step=step, epoch=epoch)


def test_constant_stays() -> None:
    assert factor(ScheduleConfig(kind="constant"), progress=0.7, epoch=30) == 1.0


def test_cosine_goes_from_one_to_its_end() -> None:
    config = ScheduleConfig(kind="cosine", final=0.1)
    assert factor(config, 0.0) == pytest.approx(1.0)
    assert factor(config, 0.5) == pytest.approx(0.55)
    assert factor(config, 0.25) == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi / 4)) / 2)
    assert factor(config, 1.0) == pytest.approx(0.1)
    assert factor(config, 1.2) == pytest.approx(0.1)


def test_linear_goes_straight() -> None:
    config = ScheduleConfig(kind="linear", final=0.2)
    assert [factor(config, p) for p in (0.0, 0.5, 1.0)] == pytest.approx([1.0, 0.6, 0.2])


@pytest.mark.parametrize("kind", ["cosine", "linear"])
def test_hold_keeps_the_full_rate_first(kind: str) -> None:
    config = ScheduleConfig(kind=kind, final=0.2, hold=0.6)
    found = [factor(config, p) for p in (0.0, 0.3, 0.6, 0.8, 1.0)]
    assert found == pytest.approx([1.0, 1.0, 1.0, 0.6, 0.2])


def test_decay_keeps_the_first_epochs_and_then_divides_each() -> None:
    """Zaremba and others: 14 epochs with the full rate, then divided by 1.15 after each epoch."""
    config = ScheduleConfig(kind="decay", decay_after=14, factor=1 / 1.15)
    assert [factor(config, epoch=e) for e in range(14)] == [1.0] * 14
    assert factor(config, epoch=14) == pytest.approx(1 / 1.15)
    assert factor(config, epoch=16) == pytest.approx(1 / 1.15**3)


@pytest.mark.parametrize("kind", ["constant", "cosine", "linear", "decay", "plateau"])
def test_warm_up_works_with_every_kind(kind: str) -> None:
    later = {"decay_after": 5} if kind == "decay" else {}
    config = ScheduleConfig(kind=kind, warmup_steps=4, **later)
    rising = [factor(config, step=s) for s in range(6)]
    assert rising == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 1.0])


def test_plateau_multiplies_when_nothing_improves() -> None:
    config = ScheduleConfig(kind="plateau", factor=0.25, patience=1)
    losses = [3.0, 2.0, 2.1, 2.2, 1.9, 2.0, 2.0, 2.0, 2.0]
    factors = [
        rate_factor(config, progress=0.5, step=100, epoch=0, valid_losses=losses[:i])
        for i in range(len(losses) + 1)
    ]
    assert factors == [1, 1, 1, 1, 0.25, 0.25, 0.25, 0.0625, 0.0625, 0.015625]


@given(st.lists(st.floats(0, 10), max_size=30), st.integers(0, 3))
def test_reductions_never_become_fewer(losses: list[float], patience: int) -> None:
    counts = [num_reductions(losses[:i], patience) for i in range(len(losses) + 1)]
    assert counts == sorted(counts)
    assert all(after - before <= 1 for before, after in pairwise(counts))
