"""Which parameters are trained when, and at which learning rate."""

from __future__ import annotations

import pytest
import torch
from torch.nn import Parameter

from elman.nn.unfreezing import GradualUnfreezing
from elman.train.optimisers import OptimiserConfig, build, set_rate


def groups() -> list[list[Parameter]]:
    return [[Parameter(torch.ones(2))] for _ in range(3)]


def test_the_top_learns_first_and_fastest() -> None:
    made = groups()
    bottom, middle, top = (group[0] for group in made)
    unfreezing = GradualUnfreezing(made, epochs_per_group=2.0, rate=0.1, rate_decay=2.0)
    assert [rate for _, rate in unfreezing.groups] == pytest.approx([0.025, 0.05, 0.1])
    for epochs, expected in (
        (0.0, (False, False, False)),
        (1.99, (False, False, False)),
        (2.0, (False, False, True)),
        (4.5, (False, True, True)),
        (6.0, (True, True, True)),
    ):
        unfreezing.begin_update(epochs)
        assert (bottom.requires_grad, middle.requires_grad, top.requires_grad) == expected
    assert not unfreezing.begin_update(7.0)
    assert unfreezing.begin_update(0.0)


def test_all_at_once() -> None:
    made = groups()
    unfreezing = GradualUnfreezing(made, epochs_per_group=0.0, rate=1.0, rate_decay=1.0)
    assert not unfreezing.begin_update(0.0)
    assert [rate for _, rate in unfreezing.groups] == [1.0, 1.0, 1.0]
    assert all(parameter.requires_grad for group in made for parameter in group)


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_the_optimiser_leaves_the_frozen_alone_and_shares_its_rate(kind: str) -> None:
    made, own = groups(), Parameter(torch.ones(2))
    unfreezing = GradualUnfreezing(made, epochs_per_group=1.0, rate=0.5, rate_decay=2.0)
    config = OptimiserConfig(kind=kind, learning_rate=0.1)  # type: ignore[arg-type]
    everything = [own, *(parameter for group in made for parameter in group)]
    optimiser = build(config, everything, unfreezing.groups)
    for group in optimiser.param_groups:
        set_rate(group, 0.1 * group.get("share", 1.0))
    unfreezing.begin_update(2.0)
    sum(parameter.sum() for parameter in everything).backward()  # type: ignore[union-attr]
    optimiser.step()
    moved = [1 - float(parameter.detach()[0]) for parameter in everything]
    assert moved == pytest.approx([0.1, 0.0, 0.025, 0.05], abs=1e-6)
