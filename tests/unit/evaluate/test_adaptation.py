"""Models that adapt: their scale, their settings, and texts read by them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elman.base.errors import UsageError
from elman.batches.encoded import EncodedText
from elman.evaluate import adaptation, perplexity
from elman.evaluate.adaptation import Adaptation, Trial, adapt, gradient_scale, tune
from elman.evaluate.perplexity import evaluate
from elman.evaluate.sequences import score_tokens
from elman.evaluate.surprisal import surprisals
from elman.models.cache import CacheConfig, Cached
from elman.models.dynamic import Dynamic, DynamicConfig, GradientScale
from elman.models.interface import next_text
from elman.models.mixture import Mixture
from elman.models.recurrent import RecurrentLM
from elman.tokens.tokenizer import Tokenizer

Build = Callable[..., RecurrentLM]
LEARNING = DynamicConfig(rate=0.01, decay=0.1, epsilon=0.01)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ELMAN_CACHE", str(tmp_path))
    return tmp_path


def text(num_tokens: int) -> EncodedText:
    """Tokens in long runs of a few of nine: what was read says what comes."""
    random = np.random.default_rng(0)
    few = [random.integers(9, size=2) for _ in range(num_tokens // 40 + 1)]
    ids = np.concatenate([random.choice(pair, 40) for pair in few])[:num_tokens]
    return EncodedText(ids.astype(np.uint16), num_bytes=num_tokens)


def flat_scale(network: Any) -> GradientScale:
    named = network.named_parameters()
    return GradientScale({name: torch.full_like(one, 0.01) for name, one in named})


def learning(network: RecurrentLM) -> Dynamic:
    return Dynamic(network, flat_scale(network), LEARNING)


def test_scale_is_the_root_mean_squared_gradient(network: Build, cache: Path) -> None:
    model, encoded, notes = network(9), text(1500), list[str]()
    found = gradient_scale(model, encoded, boundary_id=0, on_note=notes.append)
    lanes = encoded.ids[:1500].reshape(100, 15).astype(np.int64)
    before = np.append(0, lanes[:-1, -1])
    inputs = np.concatenate([before[:, None], lanes[:, :-1]], axis=1)
    state, sums = model.initial_state(100), dict.fromkeys(found.rms, 0.0)
    for start in (0, 5, 10):
        model.zero_grad()
        some = slice(start, start + 5)
        tokens, targets = torch.from_numpy(inputs[:, some]), torch.from_numpy(lanes[:, some])
        logprobs, state = model.logprobs(tokens, targets, state.detach())
        (-logprobs.mean()).backward()  # type: ignore[no-untyped-call]
        for name, one in model.named_parameters():
            assert one.grad is not None
            sums[name] += one.grad**2
    for name, total in sums.items():
        expected = (torch.as_tensor(total) / 3).sqrt()
        torch.testing.assert_close(found.rms[name], expected, rtol=1e-4, atol=1e-7)
    assert list((cache / "gradients").glob("*.safetensors"))
    assert notes == ["measuring the gradients of 1,500 tokens of the training text, once"]
    again = gradient_scale(model, encoded, boundary_id=0, on_note=notes.append)  # from the cache
    torch.testing.assert_close(dict(again.rms), dict(found.rms), rtol=0, atol=0)
    assert len(notes) == 1


def test_a_text_is_read_in_order(network: Build) -> None:
    model, encoded = Cached(learning(network(9)), CacheConfig(window=20)), text(300)
    (scores,), _ = score_tokens(model, [encoded.ids.tolist()], previous=0)
    found = evaluate(model, encoded, boundary_id=0)
    assert found.nats_per_token == pytest.approx(-math.fsum(scores.logprobs) / 300, rel=1e-5)
    static = evaluate(network(9), encoded, boundary_id=0)
    assert found.perplexity < static.perplexity
    with pytest.raises(UsageError, match="one lane"):
        evaluate(model, encoded, boundary_id=0, batch_size=2)
    with pytest.raises(UsageError, match="adapts"):
        evaluate(model, encoded, boundary_id=0, context=3)


def test_lanes_begin_with_a_full_cache(network: Build) -> None:
    model, encoded = Cached(network(9), CacheConfig(window=30, weight=0.5)), text(2000)
    exact = evaluate(model, encoded, boundary_id=0, batch_size=1)
    lanes = evaluate(model, encoded, boundary_id=0, batch_size=8, overlap=32)
    assert lanes.nats_per_token == pytest.approx(exact.nats_per_token, rel=1e-3)


def test_lines_are_read_in_order_and_the_memory_is_kept(network: Build) -> None:
    model, encoded = learning(network(9)), text(120)
    found = evaluate(model, encoded, boundary_id=0, line_end=int(encoded.ids[10]))
    state, nats, line = model.initial_state(1), 0.0, []
    for token in encoded.ids.tolist():
        line.append(token)
        if token == encoded.ids[10]:
            (scores,), state = score_tokens(model, [line], previous=0, state=state)
            nats -= math.fsum(scores.logprobs)
            state, line = next_text(model, state, torch.tensor([token])), []
    if line:
        nats -= math.fsum(score_tokens(model, [line], previous=0, state=state)[0][0].logprobs)
    assert found.nats_per_token == pytest.approx(nats / 120, rel=1e-5)


@pytest.mark.parametrize("kind", ["pretokenized", "bpe"])
def test_surprisal_of_lines_adapts_and_resets(
    tokenizers: dict[str, Tokenizer], network: Build, kind: str
) -> None:
    tokenizer = tokenizers[kind]
    model = learning(network(tokenizer.vocab_size))
    same = "the cat sat on the mat\n" * 3

    def lines(**how: Any) -> list[float]:
        rows = surprisals(model, tokenizer, same, unit="line", **how)
        return [row.surprisal or 0.0 for row in rows]

    first, second, third = lines()
    assert first > second > third
    assert lines(reset="line") == pytest.approx([first] * 3)
    assert lines(reset="blank") == pytest.approx([first, second, third])
    assert lines(carry=True)[1] != pytest.approx(second)


@pytest.mark.parametrize("ways", [("adapt",), ("cache",), ("adapt", "cache")])
def test_tuning_finds_better_settings(network: Build, ways: tuple[str, ...]) -> None:
    model, encoded, tried = network(9), text(160), list[Trial]()
    given = {"adapt": DynamicConfig(rate=0.0001, epsilon=0.01), "cache": CacheConfig(window=20)}
    settings = Adaptation(**{way: given[way] for way in ways})
    (found,) = tune(model, settings, encoded, flat_scale, boundary_id=0, on_trial=tried.append)
    before = evaluate(adapt(model, [settings], flat_scale), encoded, boundary_id=0, batch_size=1)
    after = evaluate(adapt(model, [found], flat_scale), encoded, boundary_id=0, batch_size=1)
    assert after.perplexity < before.perplexity
    best = min(trial.perplexity for trial in tried)
    assert after.perplexity == pytest.approx(best, rel=2e-2)  # the first token has no cache


def test_the_time_of_a_setting_is_without_that_of_the_scale(
    network: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tried, clock = network(9), list[Trial](), [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])

    def slow_scale(network: Any) -> GradientScale:
        clock[0] += 600
        return flat_scale(network)

    settings = Adaptation(adapt=DynamicConfig(rate=0.0001, epsilon=0.01))
    tune(model, settings, text(60), slow_scale, boundary_id=0, on_trial=tried.append)
    assert {trial.seconds for trial in tried} == {0}


def test_what_is_clearly_worse_is_not_read_to_the_end(
    network: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, encoded, settings = network(9), text(400), Adaptation(adapt=LEARNING)
    for module in (adaptation, perplexity):
        monkeypatch.setattr(module, "LEARNT_LENGTH", 40)
    monkeypatch.setattr(adaptation, "TUNED_AT_LEAST", 80)

    def tuned(clearly: float) -> tuple[DynamicConfig | None, dict[str, Trial]]:
        monkeypatch.setattr(adaptation, "CLEARLY", clearly)
        tried: list[Trial] = []
        (found,) = tune(model, settings, encoded, flat_scale, boundary_id=0, on_trial=tried.append)
        return found.adapt, {trial.setting: trial for trial in tried}

    (whole, all_tried), (found, tried) = tuned(math.inf), tuned(2.0)
    assert found == whole
    assert {trial.num_tokens for trial in all_tried.values()} == {400}
    best = min(tried.values(), key=lambda trial: trial.perplexity)
    assert best.num_tokens == 400
    assert best.perplexity == pytest.approx(all_tried[best.setting].perplexity)
    assert min(trial.num_tokens for trial in tried.values()) == 80
    assert [trial.left for trial in tried.values()][:6] == [4, 3, 2, 1, 0, 0]


def test_weights_that_become_too_large_are_not_the_best(network: Build) -> None:
    settings = Adaptation(adapt=replace(LEARNING, rate=1e30))
    tried: list[Trial] = []
    tune(network(9), settings, text(60), flat_scale, boundary_id=0, on_trial=tried.append)
    assert not math.isfinite(tried[0].perplexity)


@pytest.mark.parametrize(
    ("samples", "scale", "scales"), [(None, None, 0), (2, None, 3), (2, 0.5, 1), (2, 1.0, 1)]
)
def test_tuning_finds_a_temperature_and_a_scale_of_dropout(
    network: Build, samples: int | None, scale: float | None, scales: int
) -> None:
    model, encoded, tried = network(9, dropout_output=0.5), text(400), list[Trial]()
    settings = Adaptation(temperature=1.0, samples=samples, dropout_scale=scale)
    (found,) = tune(model, settings, encoded, None, boundary_id=0, on_trial=tried.append)
    best = min(tried, key=lambda trial: trial.perplexity).setting.split()
    assert best[-1] == f"temperature={found.temperature:g}"
    assert len({trial.setting.split()[0] for trial in tried if samples}) >= scales
    if samples:
        assert best[0] == f"dropout_scale={found.dropout_scale:g}"
        assert scale in (None, found.dropout_scale)
    before, after = (
        evaluate(adapt(model, [one]), encoded, boundary_id=0) for one in (settings, found)
    )
    assert after.perplexity < before.perplexity


def test_settings_of_networks(network: Build) -> None:
    with pytest.raises(UsageError, match="dropout masks"):
        Adaptation(samples=2, cache=CacheConfig())
    with pytest.raises(UsageError, match="nothing is dropped"):
        Adaptation(dropout_scale=0.5)
    mixed = adapt(Mixture([network(9), network(9)], [0.5, 0.5]), [Adaptation(temperature=2.0)])
    assert evaluate(mixed, text(100), boundary_id=0).perplexity < 12


def test_a_mixture_adapts_model_by_model(network: Build) -> None:
    mixture, encoded = Mixture([network(9), network(9)], [0.5, 0.5]), text(120)
    settings = Adaptation(adapt=LEARNING, cache=CacheConfig(window=20))
    found = tune(mixture, settings, encoded, flat_scale, boundary_id=0)
    assert len(found) == 2
    adapted = adapt(mixture, found, flat_scale)
    static = evaluate(mixture, encoded, boundary_id=0)
    assert evaluate(adapted, encoded, boundary_id=0).perplexity < static.perplexity


@pytest.mark.gpu
def test_a_gpu_gives_the_same(network: Build) -> None:
    encoded, cpu = text(300), network(9)
    settings = [Adaptation(adapt=LEARNING, cache=CacheConfig(window=20))]
    expected = evaluate(adapt(cpu, settings, flat_scale), encoded, boundary_id=0)
    gpu = network(9).to("cuda")
    found = evaluate(adapt(gpu, settings, flat_scale), encoded, boundary_id=0)
    assert found.nats_per_token == pytest.approx(expected.nats_per_token, rel=1e-3)
