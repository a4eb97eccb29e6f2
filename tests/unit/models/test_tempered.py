"""A softmax temperature, and means over dropout masks: probabilities that sum to one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elman import testing
from elman.base.errors import UsageError
from elman.models import dropout_samples
from elman.models.cache import CacheConfig, Cached
from elman.models.decoding import for_decoding
from elman.models.dropout_samples import DropoutSamples
from elman.models.dynamic import Dynamic, DynamicConfig, GradientScale
from elman.models.tempered import Temperatures, Tempered
from elman.nn.heads.mixture import MixtureConfig
from tiny_models import TINY

NAMES = ("lstm", "tied", "window", "adaptive", "maxent")


@pytest.fixture(params=[name for name in NAMES if name in TINY])
def network(request: pytest.FixtureRequest) -> Any:
    return testing.build(TINY[request.param])


def dropping(**changes: Any) -> Any:
    config = replace(TINY["lstm"], dropout_input=0.4, dropout_output=0.4, weight_drop=0.5)
    return testing.build(replace(config, **changes))


@pytest.mark.parametrize(
    "check",
    [
        testing.check_shapes,
        testing.check_stepwise_equals_whole,
        testing.check_chunked_equals_whole,
        testing.check_rows_are_independent,
        testing.check_state_rows,
        testing.check_state_is_a_value,
        testing.check_blind_to_the_future,
    ],
)
def test_a_tempered_network_is_a_language_model(network: Any, check: Any) -> None:
    check(Tempered(network, 1.3))
    check(Cached(Tempered(network, 0.8), CacheConfig(window=4)))


@given(temperature=st.floats(0.05, 20))
@settings(max_examples=20)
def test_temperature_is_a_power_of_the_probabilities(temperature: float) -> None:
    network, tokens_B = testing.build(TINY["tied"]), torch.tensor([3, 4])
    with torch.no_grad():
        plain_BV, _ = network.step(tokens_B, network.initial_state(2))
        model = Tempered(network, temperature)
        found_BV, _ = model.step(tokens_B, model.initial_state(2))
        decoded_BV, _ = for_decoding(model).step(tokens_B, model.initial_state(2))
    powers_BV = (plain_BV.double() / temperature).exp()
    expected_BV = powers_BV / powers_BV.sum(dim=1, keepdim=True)
    torch.testing.assert_close(found_BV.double().exp(), expected_BV, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(decoded_BV, found_BV, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found_BV.exp().sum(dim=1), torch.ones(2))


def test_temperature_one_changes_nothing(network: Any) -> None:
    tokens_BT = testing.some_tokens(2, 9)
    torch.testing.assert_close(
        testing.whole(Tempered(network, 1.0), tokens_BT),
        testing.whole(network, tokens_BT),
        rtol=1e-4,
        atol=1e-5,
    )


def test_a_tempered_network_goes_on_learning(network: Any) -> None:
    """From its tempered predictions: at temperature 1 as without."""
    scale = GradientScale({n: torch.ones_like(one) for n, one in network.named_parameters()})
    config, tokens_1T = DynamicConfig(rate=0.1, chunk_length=3), testing.some_tokens(1, 12)
    plain = testing.whole(Dynamic(network, scale, config), tokens_1T)
    same = testing.whole(Dynamic(Tempered(network, 1.0), scale, config), tokens_1T)
    torch.testing.assert_close(same, plain, rtol=1e-3, atol=1e-4)
    testing.check_state_is_a_value(Dynamic(Tempered(network, 0.7), scale, config))


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf")])
def test_wrong_temperatures(temperature: float) -> None:
    with pytest.raises(UsageError, match="temperature"):
        Tempered(testing.build(TINY["lstm"]), temperature)


@pytest.mark.parametrize("locked", [True, False])
def test_samples_are_a_language_model(locked: bool) -> None:
    model = DropoutSamples(dropping(locked=locked), 3)
    testing.check_shapes(model)
    testing.check_blind_to_the_future(model)
    testing.check_state_is_a_value(model)
    tokens_B = torch.tensor([5, 1, 2])
    logprobs_BV, _ = model.step(tokens_B, model.initial_state(3))
    torch.testing.assert_close(logprobs_BV.exp().sum(dim=1), torch.ones(3))


def test_samples_are_the_mean_of_probabilities_under_different_masks() -> None:
    network, tokens_BT = dropping(), testing.some_tokens(2, 8)
    ones = [testing.whole(DropoutSamples(network, 1, seed), tokens_BT) for seed in range(40)]
    assert not torch.allclose(ones[0], ones[1])
    many = testing.whole(DropoutSamples(network, 400), tokens_BT)
    mean = torch.stack(ones).exp().mean(dim=0)
    torch.testing.assert_close(many.exp(), mean, rtol=0.2, atol=0.02)
    assert not network.training


def test_random_numbers_of_others_are_left_alone() -> None:
    model, tokens_BT = DropoutSamples(dropping(), 2), testing.some_tokens(1, 4)
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    first = testing.whole(model, tokens_BT)
    torch.testing.assert_close(torch.rand(4), expected, rtol=0, atol=0)
    torch.testing.assert_close(testing.whole(model, tokens_BT), first, rtol=0, atol=0)


def test_without_dropout_samples_are_all_alike() -> None:
    network, tokens_BT = testing.build(TINY["tied"]), testing.some_tokens(2, 6)
    found = testing.whole(DropoutSamples(network, 3), tokens_BT)
    torch.testing.assert_close(found, testing.whole(network, tokens_BT), rtol=1e-4, atol=1e-5)


EVERY_RATE = {
    **{f"dropout_{name}": 0.4 for name in ("embedding", "input", "hidden", "output", "state")},
    "weight_drop": 0.4,
}


@pytest.mark.parametrize(
    "config",
    [
        replace(TINY["lstm"], **EVERY_RATE),
        replace(TINY["mixture of softmaxes"], head=MixtureConfig(num_components=3, dropout=0.4)),
        replace(TINY["character cnn"], dropout_embedding=0.4, dropout_input=0.4),
        replace(TINY["window deep"], dropout_hidden=0.4),
    ],
    ids=["every rate", "mixture of softmaxes", "character cnn", "window"],
)
def test_less_dropout_is_nearer_to_none(config: Any) -> None:
    network, tokens_BT = testing.build(config), testing.some_tokens(2, 6)
    plain = testing.whole(network, tokens_BT)
    none, little, all_of_it = (
        testing.whole(DropoutSamples(network, 4, scale=scale), tokens_BT)
        for scale in (0.0, 0.1, 1.0)
    )
    torch.testing.assert_close(none, plain, rtol=1e-4, atol=1e-5)
    distances = [(found - plain).abs().mean() for found in (little, all_of_it)]
    assert 0 < distances[0] < distances[1]
    again = testing.whole(DropoutSamples(network, 4), tokens_BT)  # the rates are what they were
    torch.testing.assert_close(again, all_of_it, rtol=0, atol=0)


@pytest.mark.parametrize("scale", [-0.1, 1.1, float("nan")])
def test_wrong_scales_of_dropout(scale: float) -> None:
    with pytest.raises(UsageError, match="dropout_scale"):
        DropoutSamples(dropping(), 2, scale=scale)


@pytest.mark.parametrize(
    ("weight_drop", "most", "expected"), [(0.0, 64, [10]), (0.0, 4, [4, 4, 2]), (0.5, 64, [2] * 5)]
)
def test_samples_are_rows_unless_they_share_masks(
    weight_drop: float, most: int, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(dropout_samples.MOST_ROWS, "cpu", most)
    model = DropoutSamples(dropping(weight_drop=weight_drop), 5)
    rows, parts = list[int](), list[torch.Tensor]()
    read = model.model.logprobs

    def logprobs(tokens_BT: Any, targets_BT: Any, state: Any) -> Any:
        found = read(tokens_BT, targets_BT, state)
        rows.append(len(tokens_BT))
        parts.extend(found[0].split(2))
        return found

    monkeypatch.setattr(model.model, "logprobs", logprobs)
    tokens_BT = testing.some_tokens(2, 9)
    found, state = model.logprobs(tokens_BT[:, :-1], tokens_BT[:, 1:], model.initial_state(2))
    assert rows == expected
    torch.testing.assert_close(found.exp(), torch.stack(parts).exp().mean(dim=0))
    assert len({float(part.sum()) for part in parts}) == 5
    states = [state.part(str(i)).flatten() for i in range(5)]
    for name in states[0]:
        if name.endswith("h"):
            assert len({float(one[name].sum()) for one in states}) == 5


def test_several_temperatures_at_once(network: Any) -> None:
    tokens_BT, temperatures = testing.some_tokens(2, 9), [0.7, 1.0, 1.6]
    given = (tokens_BT[:, :-1], tokens_BT[:, 1:])
    with torch.no_grad():
        found, _ = Temperatures(network, temperatures).logprobs(*given, network.initial_state(2))
        for place, one in enumerate(temperatures):
            expected, _ = Tempered(network, one).logprobs(*given, network.initial_state(2))
            torch.testing.assert_close(found[:, :, place], expected, rtol=1e-4, atol=1e-5)
