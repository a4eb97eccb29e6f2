"""When a run validates."""

from __future__ import annotations

import pytest

from elman.train.budget import Budget, Progress
from elman.train.training_config import TrainingConfig


def validated(num_epochs: int, *, updates: int, tokens: int, num_valid: int) -> list[int]:
    """The steps after which a run validates, of epochs with some updates and tokens."""
    training = TrainingConfig(epochs=num_epochs)
    budget = Budget(training, tokens, clock=lambda: 0.0, started=0.0)
    progress, steps = Progress(), []
    for _ in range(num_epochs):
        for left in reversed(range(updates)):
            progress.step, progress.tokens = progress.step + 1, progress.tokens + tokens // updates
            if budget.wants_validation(progress, left == 0, num_valid, 1.0):
                progress.valid_losses.append(1.0)
                progress.validated_step = progress.step
                progress.validated_tokens = progress.tokens
                steps.append(progress.step)
    return steps


def test_a_run_validates_after_each_epoch() -> None:
    assert validated(3, updates=30, tokens=3000, num_valid=300) == [30, 60, 90]


def test_validations_become_rarer_after_a_hundred_epochs() -> None:
    epochs = [step // 20 for step in validated(300, updates=20, tokens=1000, num_valid=150)]
    assert epochs == [*range(1, 101), *range(103, 301, 3)]


@pytest.mark.parametrize(("updates", "gap"), [(1, 20), (3, 21), (19, 38), (20, 20), (25, 25)])
def test_short_epochs_end_with_a_validation_every_twenty_updates(updates: int, gap: int) -> None:
    steps = validated(200, updates=updates, tokens=100 * updates, num_valid=1)
    assert steps[:4] == [gap, 2 * gap, 3 * gap, 4 * gap]


def test_a_large_validation_text_is_read_after_several_epochs() -> None:
    assert validated(12, updates=20, tokens=1000, num_valid=1000) == [120, 240]
    assert validated(4, updates=20, tokens=1000, num_valid=160) == [20, 40, 60, 80]


def test_samples_become_rarer() -> None:
    training = TrainingConfig(steps=4000, validate_every=100)
    budget = Budget(training, 1000, clock=lambda: 0.0, started=0.0)
    losses = [1.0] * 32
    drawn = [n for n in range(1, 33) if budget.wants_sample(Progress(valid_losses=losses[1:n]))]
    assert drawn == [*range(1, 9), *range(10, 17, 2), *range(20, 33, 4)]


def test_close_validations_draw_a_sample_every_hundred_updates() -> None:
    budget = Budget(TrainingConfig(steps=4000), 1000, clock=lambda: 0.0, started=0.0)
    progress, drawn = Progress(), []
    for step in range(25, 400, 25):
        progress.step = step
        if budget.wants_sample(progress):
            drawn.append(step)
        progress.validated_step = step
    assert drawn == [25, 100, 200, 300]
