"""How fast a configuration trains."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from elman.recipes import speed as measuring
from elman.recipes.resolve import resolve
from elman.testing import TOY_TEXT
from elman.train.report import Report


@pytest.fixture
def config(tmp_path: Path) -> Any:
    text = tmp_path / "toy.txt"
    text.write_text(TOY_TEXT)
    return resolve("lm", [str(text)], steps=5, device="cpu").config


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replaces training: ten updates a second, for half of which another program has the core.
    Returns the updates that were reported."""
    clock, seen = [0.0], []

    def train(config: Any, out: Path, **how: Any) -> Iterator[Report]:
        for step in range(0, config.training.steps + 1, config.training.report_every):
            clock[0] += 1
            seen.append(step)
            yield Report(kind="step" if step else "start", step=step, tokens=100 * step)

    monkeypatch.setattr(measuring, "train", train)
    monkeypatch.setattr(measuring.time, "monotonic", lambda: clock[0])
    used = torch.get_num_threads() / 2
    monkeypatch.setattr(measuring.time, "process_time", lambda: used * clock[0])
    return seen


def test_the_speed_on_idle_cores_leaves_out_what_others_use(config: Any, steps: list[int]) -> None:
    found = measuring.training_speed(config, Path("none"), "cpu")
    assert found == measuring.Speed(updates=10.0, idle_updates=20.0, idle_tokens=2000.0)
    assert steps[-1] == measuring.SPEED_STEPS


def test_a_speed_can_be_measured_for_longer(config: Any, steps: list[int]) -> None:
    measuring.training_speed(config, Path("none"), "cpu", seconds=9)
    assert steps[-1] == 90
    steps.clear()
    measuring.training_speed(config, Path("none"), "cpu", seconds=2)
    assert steps[-1] == measuring.SPEED_STEPS


def test_a_signal_ends_the_measurement(
    config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(config: Any, out: Path, **how: Any) -> Iterator[Report]:
        out.mkdir()
        yield Report(kind="stopped", step=1)

    monkeypatch.setattr(measuring, "train", train)
    with pytest.raises(measuring.Interrupted):
        measuring.training_speed(config, tmp_path / "run", "cpu")
    assert not (tmp_path / "run").exists()
