"""The continuous cache, beside the equations of Grave, Joulin and Usunier (2017)."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from elman import testing
from elman.base.errors import UsageError
from elman.models.cache import CacheConfig, Cached
from elman.models.decoding import for_decoding
from elman.models.interface import LanguageModel, next_text
from elman.models.mixture import Mixture
from elman.nn.state import State
from tiny_models import TINY


class Counts:
    """P(w | v) = 1/2 if w is v + 1, else uniform: a model of bigrams, without hidden vectors."""

    reach = 2
    vocab_size = testing.VOCAB_SIZE

    def initial_state(self, batch_size: int) -> State:
        return State({"context": torch.zeros(batch_size, 1)})

    def step(self, tokens_B: Tensor, state: State) -> tuple[Tensor, State]:
        likely_B = (tokens_B + 1) % self.vocab_size
        probs_BV = torch.full((len(tokens_B), self.vocab_size), 0.5 / self.vocab_size)
        probs_BV[torch.arange(len(tokens_B)), likely_B] += 0.5
        return probs_BV.log(), state

    def logprobs(self, tokens_BT: Tensor, targets_BT: Tensor, state: State) -> tuple[Tensor, State]:
        flat, _ = self.step(tokens_BT.flatten(), state)
        return flat.gather(1, targets_BT.flatten()[:, None]).view(targets_BT.shape), state


MODELS: dict[str, Any] = {
    "lstm": lambda: testing.build(TINY["lstm"]),
    "window": lambda: testing.build(TINY["window"]),
    "counts": Counts,
}


@pytest.fixture(params=MODELS)
def base(request: pytest.FixtureRequest) -> Any:
    return MODELS[request.param]()


def cached(base: Any, **changes: Any) -> Cached:
    return Cached(base, CacheConfig(**{"window": 4, "weight": 0.3, "theta": 0.7, **changes}))


def direct(base: Any, tokens: list[int], window: int, weight: float, theta: float) -> list[Tensor]:
    """The distribution after each token, by the equations, one position at a time in float64."""
    hidden: list[Tensor] = []
    found = []
    state = base.initial_state(1)
    for t, token in enumerate(tokens):
        token_1 = torch.tensor([token])
        if isinstance(base, Counts):
            logprobs_1V, state = base.step(token_1, state)
        else:
            vectors, after = base.hidden(token_1[:, None], state)
            hidden.append(vectors.dropped_BTH[0, 0].double())
            logprobs_1V, state = base.step(token_1, state)
            assert after.batch_size == 1
        cache_V = torch.zeros(base.vocab_size, dtype=torch.float64)
        for i in range(max(0, t - window), t):
            if isinstance(base, Counts):
                alike = 0
                while alike < min(base.reach, i + 1) and tokens[t - alike] == tokens[i - alike]:
                    alike += 1
            else:
                alike = float(hidden[t] @ hidden[i])
            cache_V[tokens[i + 1]] += math.exp(theta * alike)
        probs_V = logprobs_1V[0].double().exp()
        if t > 0:
            probs_V = (1 - weight) * probs_V + weight * cache_V / cache_V.sum()
        found.append(probs_V)
    return found


@torch.no_grad()
@pytest.mark.parametrize("theta", [0.0, 0.7])
def test_is_the_papers_equation(base: Any, theta: float) -> None:
    tokens_1T = testing.some_tokens(1, 14) % 5  # words come back
    model = cached(base, theta=theta)
    expected = direct(base, tokens_1T[0].tolist(), 4, 0.3, theta)
    whole = testing.whole(model, tokens_1T)[0]
    state = model.initial_state(1)
    for t in range(13):
        logprobs_1V, state = model.step(tokens_1T[:, t], state)
        torch.testing.assert_close(logprobs_1V[0].double().exp(), expected[t], rtol=1e-5, atol=1e-7)
        by_target = expected[t][tokens_1T[0, t + 1]].log().float()
        torch.testing.assert_close(whole[t], by_target, rtol=1e-5, atol=1e-6)


@settings(max_examples=12, deadline=None)
@given(
    tokens=st.lists(st.integers(0, testing.VOCAB_SIZE - 1), min_size=1, max_size=12),
    window=st.integers(1, 9),
    weight=st.floats(0, 0.999),
    theta=st.floats(0, 5),
    name=st.sampled_from([*MODELS, "mixture"]),
)
def test_sums_to_one_after_every_token(
    tokens: list[int], window: int, weight: float, theta: float, name: str
) -> None:
    changes = {"window": window, "weight": weight, "theta": theta}
    bases = [MODELS[one]() for one in (MODELS if name == "mixture" else [name])]
    parts = [cached(base, **changes) for base in bases]
    model: LanguageModel = Mixture(parts, [1.0] * len(parts)) if len(parts) > 1 else parts[0]
    with torch.no_grad():
        state = model.initial_state(1)
        for token in tokens:
            logprobs_1V, state = model.step(torch.tensor([token]), state)
            assert float(logprobs_1V.double().exp().sum()) == pytest.approx(1, abs=1e-5)
            assert not bool(logprobs_1V.isnan().any())


@pytest.mark.parametrize("check", testing.CONTRACT)
def test_is_a_language_model(base: Any, check: Any) -> None:
    check(cached(base))
    check(Mixture([cached(base), base], [0.5, 0.5]))


@torch.no_grad()
def test_the_cache_outlives_a_text_and_can_be_restored(base: Any) -> None:
    model, tokens_1T = cached(base, window=6), testing.some_tokens(1, 9)
    _, state = model.logprobs(tokens_1T[:, :-1], tokens_1T[:, 1:], model.initial_state(1))
    later = next_text(model, state, tokens_1T[:, -1])
    first, _ = model.step(torch.tensor([0]), later)
    fresh, _ = model.step(torch.tensor([0]), model.initial_state(1))
    assert not torch.allclose(first, fresh)
    again = model.with_memory(State.unflatten(model.memory(later).flatten()))
    torch.testing.assert_close(again.step(torch.tensor([0]), again.initial_state(1))[0], first)
    # The text's last token, which was predicted and not read, is in the cache.
    assert model.memory(later).tensor("followed")[0, -1] == tokens_1T[0, -1]


@torch.no_grad()
def test_a_long_stream_takes_no_more_memory(base: Any) -> None:
    model, state = cached(base), cached(base).initial_state(2)
    sizes = {name: tensor.shape for name, tensor in state.flatten().items()}
    for length in (1, 3, 200):
        tokens_BT = testing.some_tokens(2, length + 1)
        _, state = model.logprobs(tokens_BT[:, :-1], tokens_BT[:, 1:], state)
        found = state.flatten()
        assert {name: tensor.shape for name, tensor in found.items()} == sizes
        for name in {"followed", "hidden", "tokens"} & set(found):
            tensor = found[name]  # no view that keeps a larger array alive
            assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


@torch.no_grad()
def test_decoding_gives_the_same(base: Any) -> None:
    model, tokens_BT = cached(base), testing.some_tokens(2, 6)
    torch.testing.assert_close(
        testing.whole(for_decoding(model), tokens_BT), testing.whole(model, tokens_BT)
    )


@pytest.mark.parametrize("wrong", [{"window": 0}, {"weight": 1.0}, {"theta": -1.0}])
def test_settings_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"cache.{next(iter(wrong))} cannot be"):
        CacheConfig(**wrong)
