"""The contract, asked of every model in the table and of every option that changes its
arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from elman import testing
from elman.base.config import from_dict, to_dict
from elman.models.decoding import for_decoding
from elman.models.interface import LanguageModel, is_neural
from elman.models.mixture import Mixture
from elman.recipes.resolve import model_kinds
from elman.tasks import all_tasks
from tiny_models import TINY

CONFIGS = TINY.items()


@pytest.fixture(params=TINY)
def config(request: pytest.FixtureRequest) -> Any:
    return TINY[request.param]


@pytest.fixture(params=[*TINY, "mixture of models"])
def model(request: pytest.FixtureRequest) -> LanguageModel:
    if request.param == "mixture of models":
        names = ("lstm", "window", "adaptive")
        return Mixture([testing.build(TINY[name]) for name in names], [0.5, 0.3, 0.2])
    return testing.build(TINY[request.param])


def test_every_kind_of_network_is_here() -> None:
    # Models that predict no text are checked in test_sentence_models; one that predicts it from
    # both sides, in unit/tasks/elmo.
    others = {"tagger", "classifier", "elmo"}
    kinds = {kind for task in all_tasks() if task.fit is None for kind in model_kinds(task)}
    assert {config.kind for config in TINY.values()} == kinds - others


def test_satisfies_the_interface(config: Any) -> None:
    assert is_neural(testing.build(config))


@pytest.mark.parametrize("check", testing.CONTRACT)
def test_keeps_the_contract(model: LanguageModel, check: Callable[[LanguageModel], None]) -> None:
    check(model)


def test_in_its_form_for_decoding(model: LanguageModel) -> None:
    decoding = for_decoding(model)
    testing.check_shapes(decoding)
    testing.check_stepwise_equals_whole(decoding)
    testing.check_state_rows(decoding)
    testing.check_state_is_a_value(decoding)


def test_repeats_under_a_seed(config: Any) -> None:
    testing.check_repeats_under_a_seed(lambda: testing.build(config))


def test_learns_one_batch_by_heart(config: Any) -> None:
    testing.check_learns_one_batch(testing.build(config))


def test_survives_saving(config: Any, tmp_path: Path) -> None:
    """Weights in safetensors (each saved once) and a config as plain values are the whole model."""
    model = testing.build(config, seed=1)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    read = from_dict(type(config), to_dict(config))
    assert read == config
    again = read.build(testing.VOCAB_SIZE).eval()
    again.load_state_dict(load_file(tmp_path / "model.safetensors"))
    tokens_BT = testing.some_tokens(3, 8)
    torch.testing.assert_close(
        testing.whole(again, tokens_BT), testing.whole(model, tokens_BT), rtol=0, atol=0
    )


def test_losses_are_negative_logprobs_in_evaluation(config: Any) -> None:
    model = testing.build(config)
    tokens_BT = testing.some_tokens(2, 5)
    hidden, _ = model.hidden(tokens_BT[:, :-1], model.initial_state(2))
    losses_BT = model.head.losses(hidden.dropped_BTH, tokens_BT[:, 1:], hidden.contexts_BTO)
    torch.testing.assert_close(-losses_BT, testing.whole(model, tokens_BT))
    assert hidden.dropped_BTH is hidden.raw_BTH  # nothing is dropped


def test_truncated_where_detached(config: Any) -> None:
    """Gradients flow through a state that is carried on, and stop where it is detached."""
    model = testing.build(config).train()
    tokens_BT = testing.some_tokens(2, 6)
    _, state = model.hidden(tokens_BT[:, :3], model.initial_state(2))
    differentiable = [t for t in state.flatten().values() if t.is_floating_point()]
    assert all(tensor.requires_grad for tensor in differentiable)
    assert not any(tensor.requires_grad for tensor in state.detach().flatten().values())


def test_bfloat16_autocast(config: Any) -> None:
    """Under autocast, losses are float32, close to the exact ones, and gradients are float32."""
    model = testing.build(config)
    tokens_BT = testing.some_tokens(2, 6)
    exact = testing.whole(model, tokens_BT)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        state = model.initial_state(2)
        logprobs_BT, after = model.logprobs(tokens_BT[:, :-1], tokens_BT[:, 1:], state)
        logprobs_BV, _ = model.step(tokens_BT[:, 0], after)
        model.train()
        hidden, _ = model.hidden(tokens_BT[:, :-1], after)
        losses_BT = model.head.losses(hidden.dropped_BTH, tokens_BT[:, 1:], hidden.contexts_BTO)
    assert logprobs_BT.dtype == logprobs_BV.dtype == losses_BT.dtype == torch.float32
    torch.testing.assert_close(logprobs_BT, exact, rtol=0.03, atol=0.03)
    losses_BT.mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.dtype == torch.float32
        assert bool(parameter.grad.isfinite().all()), name


def test_double_precision(config: Any) -> None:
    model = testing.build(config)
    tokens_BT = testing.some_tokens(2, 6)
    single = testing.whole(model, tokens_BT)
    double = testing.whole(model.double(), tokens_BT)
    assert double.dtype == torch.float64
    torch.testing.assert_close(double.float(), single, rtol=1e-4, atol=1e-5)
