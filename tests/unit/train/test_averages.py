"""Averages of the weights against their papers."""

from __future__ import annotations

import pytest
import torch
from torch.nn import Parameter

from elman.base.errors import UsageError
from elman.train.averages import Average, averaging_starts
from elman.train.optimisers import OptimiserConfig


def published_trigger(losses: list[float], interval: int) -> list[bool]:
    """Whether averaging is on after each validation, as the authors' training script decides it."""
    seen: list[float] = []
    on, answers = False, []
    for loss in losses:
        if not on and len(seen) > interval and loss > min(seen[:-interval]):
            on = True
        seen.append(loss)
        answers.append(on)
    return answers


@pytest.mark.parametrize(
    "losses",
    [
        [5, 4, 3, 2, 1, 0.5, 0.4],
        [5, 4, 3, 3.5, 3.2, 3.1, 3.3, 3.05, 2.0],
        [5, 6, 7, 8, 9, 10],
        [3, 2, 2.5, 2.4, 2.3, 2.2, 1.9, 2.1, 2.05, 2.3],
    ],
)
def test_averaging_starts_as_published(losses: list[float]) -> None:
    config = OptimiserConfig(kind="asgd", non_monotone_interval=3)
    answers = [averaging_starts(config, losses[: i + 1]) for i in range(len(losses))]
    assert answers == published_trigger(losses, 3)


def test_any_optimiser_can_average() -> None:
    rising = [1.0, *range(10)]
    for kind in ("sgd", "adam", "adamw", "rmsprop"):
        assert averaging_starts(OptimiserConfig(kind=kind, average="triggered"), rising)
    late = OptimiserConfig(kind="adam", average="triggered", average_latest=3)
    falling = [3.0, 2.0, 1.0]
    assert [averaging_starts(late, falling[:n]) for n in (1, 2, 3)] == [False, False, True]
    with pytest.raises(UsageError, match="asgd averages by itself"):
        OptimiserConfig(kind="asgd", average="exponential")
    with pytest.raises(UsageError, match="restarts"):
        OptimiserConfig(kind="adam", restarts=1)


def test_the_exponential_average_by_its_definition() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    average = Average([parameter], decay=0.9)
    values = [float(n % 7) for n in range(40)]
    for value in values:
        parameter.data.fill_(value)
        average.update()
    mean = sum(values[:10]) / 10  # as many as 1 / (1 - decay): all alike
    for value in values[10:]:
        mean = 0.9 * mean + 0.1 * value
    assert float(average.means[0]) == pytest.approx(mean)


def test_only_asgd_averages_by_default() -> None:
    rising = [float(i) for i in range(20)]
    assert averaging_starts(OptimiserConfig(kind="asgd"), rising)
    assert not averaging_starts(OptimiserConfig(kind="sgd"), rising)


def test_the_average_is_the_mean_since_it_was_begun() -> None:
    parameter = Parameter(torch.full((2,), 100.0))
    average = Average([parameter])
    values = [1.0, 2.0, 6.0]
    for value in values:
        parameter.data.fill_(value)
        average.update()
    torch.testing.assert_close(average.means[0], torch.full((2,), 3.0))
    with average.applied():
        assert parameter.tolist() == pytest.approx([3.0, 3.0])
    assert parameter.tolist() == [6.0, 6.0]
    torch.testing.assert_close(average.means[0], torch.full((2,), 3.0))
