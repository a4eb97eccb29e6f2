"""Clipping against the lecture's pseudo-code, and what a run says when it leaves the numbers."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import Parameter

from elman.base.errors import ElmanError
from elman.train.gradients import Meter, clip, perplexity


def parameters(*gradients: list[float]) -> list[Parameter]:
    made = []
    for gradient in gradients:
        parameter = Parameter(torch.zeros(len(gradient)))
        parameter.grad = torch.tensor(gradient)
        made.append(parameter)
    return made


def test_a_long_gradient_is_scaled_to_the_threshold() -> None:
    made = parameters([3.0, 0.0], [4.0])
    norm, norms_P = clip(made, 1.0)
    assert norm == pytest.approx(5.0)
    assert norms_P.tolist() == pytest.approx([3.0, 4.0])
    # The slide: where the norm is at least the threshold, g becomes threshold / norm * g.
    assert made[0].grad.tolist() == pytest.approx([3 / 5, 0.0])
    assert made[1].grad.tolist() == pytest.approx([4 / 5])


@pytest.mark.parametrize("threshold", [0.0, 5.0, 100.0])
def test_a_short_gradient_is_left_alone(threshold: float) -> None:
    made = parameters([3.0, 0.0], [4.0])
    clip(made, threshold)
    assert made[0].grad.tolist() == [3.0, 0.0]
    assert made[1].grad.tolist() == [4.0]


def test_a_gradient_of_zero_stays_zero() -> None:
    made = parameters([0.0, 0.0])
    norm, _ = clip(made, 1.0)
    assert norm == 0
    assert made[0].grad.tolist() == [0.0, 0.0]


def meter_after(steps: list[tuple[float, list[float]]], clip_norm: float = 1.0) -> Meter:
    named = dict(zip(["input.weight", "head.bias"], parameters([0.0], [0.0]), strict=True))
    meter = Meter(named, clip_norm)
    for number, (nats, norms) in enumerate(steps, start=1):
        norms_P = torch.tensor(norms)
        meter.add(number, 10, torch.tensor(nats), torch.linalg.vector_norm(norms_P), norms_P)
    return meter


def test_figures_are_weighted_by_tokens_and_begin_afresh() -> None:
    meter = meter_after([(20.0, [0.3, 0.4]), (10.0, [3.0, 4.0])])
    figures = meter.figures()
    assert figures["loss"] == pytest.approx(1.5)
    assert figures["perplexity"] == pytest.approx(math.exp(1.5))
    assert figures["gradient_norm"] == pytest.approx(2.75)
    assert figures["clip_rate"] == 0.5
    assert meter.num_steps == 0


def test_sums_survive_a_checkpoint_between_two_reports() -> None:
    steps = [(0.1 * i, [0.1, 0.7 * i]) for i in range(9)]
    whole = meter_after(steps)
    first = meter_after(steps[:4])
    first.settle()
    second = meter_after(steps[4:])
    second.load_state_dict(first.state_dict())
    assert second.figures() == whole.figures()


def test_a_loss_that_is_not_a_number_stops_with_its_step() -> None:
    meter = meter_after([(1.0, [1.0, 1.0]), (math.nan, [math.nan, 1.0]), (1.0, [1.0, 1.0])])
    with pytest.raises(ElmanError, match="step 2: the loss became nan") as caught:
        meter.settle()
    assert "learning_rate" in caught.value.hint


def test_an_infinite_gradient_names_its_parameter() -> None:
    meter = meter_after([(1.0, [1.0, math.inf])])
    with pytest.raises(ElmanError, match=r"step 1: the gradient of head\.bias"):
        meter.settle()


def test_perplexity_stays_within_json() -> None:
    assert perplexity(1.0) == pytest.approx(math.e)
    assert math.isfinite(perplexity(1e9))
