"""Dynamic evaluation, beside the equations of Krause and others (2018)."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from elman import testing
from elman.base.errors import UsageError
from elman.models import dynamic
from elman.models.cache import CacheConfig, Cached
from elman.models.decoding import for_decoding
from elman.models.dynamic import Dynamic, DynamicConfig, GradientScale
from elman.models.interface import next_text
from elman.models.mixture import Mixture
from elman.nn.state import State
from stand_ins import Repeat
from tiny_models import TINY

NAMES = (
    "lstm",
    "tied",
    "mogrified",
    "gru lecture",
    "window",
    "adaptive",
    "character cnn",
    "maxent",
)
CONFIG = DynamicConfig(rate=0.02, decay=0.3, epsilon=0.01, chunk_length=3)


@pytest.fixture(params=[name for name in NAMES if name in TINY])
def network(request: pytest.FixtureRequest) -> Any:
    return testing.build(TINY[request.param])


def scale_of(network: Any) -> GradientScale:
    """A scale with a wide range, so that the limit on the decay is reached."""
    torch.manual_seed(5)
    named = network.named_parameters()
    return GradientScale({name: torch.rand_like(one) ** 6 for name, one in named})


def direct(
    network: Any, scale: GradientScale, config: DynamicConfig, tokens: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Log probabilities and final weights, by the equations: every parameter by itself."""
    own = testing.build(network.config)
    own.load_state_dict(network.state_dict())
    trained = {name: one.detach().clone() for name, one in own.named_parameters()}
    means = [one.double().mean() for one in scale.rms.values() if one.numel()]
    mean = float(sum(means) / len(means))
    state, found = own.initial_state(1), []
    for start in range(0, tokens.shape[1] - 1, config.chunk_length):
        inputs = tokens[:, start : start + config.chunk_length]
        targets = tokens[:, start + 1 : start + 1 + config.chunk_length]
        inputs = inputs[:, : targets.shape[1]]
        logprobs, state = own.logprobs(inputs, targets, state)
        found.append(logprobs.detach())
        state = state.detach()
        if targets.shape[1] < config.chunk_length:
            break
        own.zero_grad()
        (-logprobs.mean()).backward()
        with torch.no_grad():
            for name, one in own.named_parameters():
                rms = scale.rms[name]
                gradient = torch.zeros_like(one) if one.grad is None else one.grad
                limited = torch.minimum(torch.tensor(1 / config.decay), rms / mean)
                back = config.decay * limited * (trained[name] - one)
                one += back - config.rate * gradient / (rms + config.epsilon)
    return torch.cat(found, dim=1), {n: one.detach() for n, one in own.named_parameters()}


def test_is_the_papers_equation(network: Any) -> None:
    scale, tokens_1T = scale_of(network), testing.some_tokens(1, 15)
    expected, weights = direct(network, scale, CONFIG, tokens_1T)
    model = Dynamic(network, scale, CONFIG)
    with torch.no_grad():
        found, state = model.logprobs(tokens_1T[:, :-1], tokens_1T[:, 1:], model.initial_state(1))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found, testing.whole(network, tokens_1T), rtol=1e-3)
    # 14 tokens are four segments of three; the direct computation has learnt from all four.
    own = for_decoding(model.with_memory(model.memory(state)))
    named = getattr(own, "model", own).named_parameters()
    for name, one in named:
        torch.testing.assert_close(one, weights[name], rtol=1e-4, atol=1e-5)


def test_the_update_of_a_gpu_is_the_papers_equation(
    network: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU, where a capture is repeated."""
    capture = learn_as_on_a_gpu(monkeypatch)
    test_is_the_papers_equation(network)
    assert capture.num_recorded == 1


def test_what_cannot_be_captured_learns_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    learn_as_on_a_gpu(monkeypatch, error="a sync")
    test_is_the_papers_equation(testing.build(TINY["lstm"]))
    told = "updates of dynamic evaluation are not replayed from a CUDA graph: a sync"
    assert [record.message for record in caplog.records] == [told]


def learn_as_on_a_gpu(monkeypatch: pytest.MonkeyPatch, error: str = "") -> Repeat:
    capture = Repeat(error=error)
    graphed = partial(dynamic.GraphedUpdate, capture=capture)
    monkeypatch.setattr(dynamic, "GraphedUpdate", graphed)
    monkeypatch.setattr(dynamic._CompiledLearner, "serves", lambda weights: False)
    monkeypatch.setattr(dynamic._GraphedLearner, "serves", lambda weights: True)
    return capture


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["lstm", "tied", "gru lecture"])
@torch.no_grad()
def test_a_captured_segment_learns_as_on_a_cpu(name: str) -> None:
    network, tokens_1T = testing.build(TINY[name]), testing.some_tokens(1, 40)
    scale = scale_of(network)
    cpu = Dynamic(network, scale, CONFIG)
    moved = GradientScale({name: one.cuda() for name, one in scale.rms.items()})
    gpu = Dynamic(testing.build(TINY[name]).cuda(), moved, CONFIG)
    on_gpu = tokens_1T.cuda()
    expected, _ = cpu.logprobs(tokens_1T[:, :-1], tokens_1T[:, 1:], cpu.initial_state(1))
    found, state = gpu.logprobs(on_gpu[:, :20], on_gpu[:, 1:21], gpu.initial_state(1))
    kept = {name: one.clone() for name, one in state.flatten().items()}
    rest, _ = gpu.logprobs(on_gpu[:, 20:-1], on_gpu[:, 21:], state)
    torch.testing.assert_close(
        torch.cat([found, rest], dim=1).cpu(), expected, rtol=1e-3, atol=1e-3
    )
    assert gpu._learner._graphed.captured  # type: ignore[attr-defined]
    for part, one in state.flatten().items():  # a state is a value: later replays leave it alone
        torch.testing.assert_close(one, kept[part], rtol=0, atol=0)


@pytest.mark.parametrize("check", testing.CONTRACT)
def test_is_a_language_model(check: Any) -> None:
    for name in ("lstm", "tied", "window"):
        network = testing.build(TINY[name])
        learning = Dynamic(network, scale_of(network), CONFIG)
        check(learning)
        check(Cached(learning, CacheConfig(window=4)))
    check(Mixture([learning, network], [0.5, 0.5]))


def test_nothing_is_seen_before_it_is_predicted(network: Any) -> None:
    testing.check_blind_to_the_future(Dynamic(network, scale_of(network), CONFIG))


@torch.no_grad()
def test_rolls_back_resets_and_goes_on(network: Any) -> None:
    model, tokens_1T = Dynamic(network, scale_of(network), CONFIG), testing.some_tokens(1, 12)
    before = model.initial_state(1)
    first, state = model.logprobs(tokens_1T[:, :-1], tokens_1T[:, 1:], before)
    second, _ = model.logprobs(tokens_1T[:, :-1], tokens_1T[:, 1:], before)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    later = next_text(model, state, tokens_1T[:, -1])
    learnt = testing.whole(model, tokens_1T, later)
    assert float(learnt.sum()) > float(first.sum())  # the same text again is easier
    memory = State.unflatten(model.memory(later).flatten())
    again = testing.whole(model.with_memory(memory), tokens_1T)
    torch.testing.assert_close(again, learnt, rtol=0, atol=0)


@torch.no_grad()
def test_the_end_of_a_text_is_learnt_from() -> None:
    """A text shorter than a segment is one too: adaptation sentence by sentence."""
    network = testing.build(TINY["lstm"])
    config = DynamicConfig(rate=0.02, epsilon=0.01, chunk_length=100)
    model, tokens_1T = Dynamic(network, scale_of(network), config), testing.some_tokens(1, 6)
    first, state = model.logprobs(tokens_1T[:, :-1], tokens_1T[:, 1:], model.initial_state(1))
    torch.testing.assert_close(first, testing.whole(network, tokens_1T))
    later = next_text(model, state, tokens_1T[:, -1])
    assert float(testing.whole(model, tokens_1T, later).sum()) > float(first.sum())


@torch.no_grad()
def test_other_targets_than_the_next_tokens() -> None:
    network = testing.build(TINY["lstm"])
    model, tokens_1T = Dynamic(network, scale_of(network), CONFIG), testing.some_tokens(1, 9)
    state, expected = model.initial_state(1), []
    for token_1 in tokens_1T.unbind(1):
        logprobs_1V, state = model.step(token_1, state)
        expected.append(logprobs_1V[0, token_1])
    found, _ = model.logprobs(tokens_1T, tokens_1T, model.initial_state(1))
    torch.testing.assert_close(found[0], torch.cat(expected))


def test_the_models_own_weights_do_not_change(network: Any) -> None:
    before = {name: one.clone() for name, one in network.state_dict().items()}
    testing.check_shapes(Dynamic(network, scale_of(network), CONFIG))
    for name, one in network.state_dict().items():
        torch.testing.assert_close(one, before[name], rtol=0, atol=0)


def test_a_scale_of_another_model_is_refused() -> None:
    one, other = testing.build(TINY["lstm"]), testing.build(TINY["gru lecture"])
    with pytest.raises(UsageError, match="do not fit"):
        Dynamic(one, scale_of(other))
