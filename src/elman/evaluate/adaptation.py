"""Models that adapt while they read: put together, measured for their scale, and tuned.

    adapted = adapt(model, Adaptation(adapt=DynamicConfig(), cache=CacheConfig()), scale)

is a `LanguageModel` like any other. A mixture adapts model by model: its networks learn, each from
its own predictions, and every model has a cache.

Without adapting, a network can be measured with a softmax temperature, or with several dropout
masks: both are settings here too.

`gradient_scale` measures the gradients by which dynamic evaluation scales its updates. `tune`
finds settings on validation text: the temperature, then rate and decay, by trying factors on its
beginning, then theta and weight of the cache. The text is read twice for all temperatures, in
coarse and fine steps, and once for all values of theta; the weight of the cache is fitted as that
of a mixture (`mixture_weights.py`). For each rate and decay it is read anew, until it is clear that
they are worse than the best so far.

B lanes, T time steps, N tokens.
"""

from __future__ import annotations

import copy
import hashlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from elman.base.cache import cache_folder
from elman.base.errors import ElmanError, UsageError
from elman.base.files import sweep
from elman.batches.encoded import EncodedText
from elman.batches.lanes import Lanes
from elman.decode.prefix import device_of
from elman.evaluate.mixture_weights import maximise
from elman.evaluate.perplexity import LEARNT_LENGTH, in_order, scored_tokens
from elman.evaluate.sequences import exp
from elman.models.cache import CacheConfig, Cached
from elman.models.dropout_samples import DropoutSamples
from elman.models.dynamic import Dynamic, DynamicConfig, GradientScale, network_of
from elman.models.interface import LanguageModel, NeuralLanguageModel, is_neural, reading
from elman.models.mixture import Mixture
from elman.models.tempered import Temperatures, Tempered
from elman.train import checkpoint

STATISTICS_LANES = 100
"""Lanes over which the gradients are averaged before they are squared, as in the authors' program:
the learning rate depends on it."""
STATISTICS_TOKENS = 1 << 18
"""Tokens of the training text, at equal distances, that are enough for the scale."""
TUNED_TOKENS = 20_000
"""Tokens at the beginning of the validation text on which temperature, rate and decay are tuned."""
TUNED_CACHE_TOKENS = 1 << 16
"""The same for theta and weight of the cache."""
THETAS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0)
"""Tried for the cache."""
MOST_FACTORS = 6
"""Of rate and decay, in one direction."""
TEMPERATURE_STEPS = ((1.08, 6), (1.02, 3))
"""Coarse and fine factors of the temperature, and how many in either direction."""
FIRST_DROPOUT_SCALE = 0.8
"""Tried first for samples; the others are in steps of 0.1."""
FEWEST_TRIALS = 5
"""Of rate and decay: the given ones, and each doubled and halved."""
CLEARLY = 4.0
"""A rate or decay is dropped early if it is worse by so many standard errors of the mean difference
of a token's log probability from that with the best so far."""
TUNED_AT_LEAST = 4_000
"""Tokens before that is looked at."""

Scale = Callable[[LanguageModel], GradientScale]
"""Measures the gradients of a network."""


@dataclass(frozen=True, kw_only=True)
class Adaptation:
    """How a model adapts (dynamic evaluation, a cache, or both), and how its networks predict."""

    adapt: DynamicConfig | None = None
    cache: CacheConfig | None = None
    temperature: float | None = None
    """Softmax temperature of networks; None: 1, and not to be tuned."""
    samples: int | None = None
    """Dropout masks over which networks predict the mean; None: no dropout."""
    dropout_scale: float | None = None
    """What rates of dropout are multiplied by for them; None: 1, or tuned."""

    def __post_init__(self) -> None:
        if self.samples is None and self.dropout_scale is not None:
            raise UsageError("without samples nothing is dropped", "add --samples")
        if self.samples is not None and (self.adapt is not None or self.cache is not None):
            raise UsageError(
                "a mean over dropout masks neither learns nor has a cache",
                "drop --samples, or --adapt and --cache",
            )


@dataclass(frozen=True)
class Trial:
    """Settings that were tried, and the perplexity that they gave on the validation text."""

    model: int
    """The number of the model in its mixture, from 0."""
    setting: str
    perplexity: float
    num_tokens: int
    """Tokens that were read. Of a setting that was dropped early, the perplexity is that of the
    best one, changed by as much as they differ on these."""
    seconds: float = 0.0
    left: int = 0
    """How many more there are at least, of those that read the text anew."""


def adapt(
    model: LanguageModel, settings: Sequence[Adaptation], scale: Scale | None = None
) -> LanguageModel:
    """The model that adapts; `settings` has one for each model of a mixture, or one for all."""
    if isinstance(model, Mixture):
        each = list(settings) * len(model.models) if len(settings) == 1 else settings
        parts = zip(model.models, each, strict=True)
        if not any(is_neural(part) for part in model.models):
            for one in each:
                _check_counts(one)
        return Mixture([_adapted(part, one, scale) for part, one in parts], model.weights)
    (one,) = settings
    if not is_neural(model):
        _check_counts(one)
    return _adapted(model, one, scale)


def _adapted(model: LanguageModel, settings: Adaptation, scale: Scale | None) -> LanguageModel:
    if is_neural(model):
        model = _network(model, settings, scale)
    return model if settings.cache is None else Cached(model, settings.cache)


def _network(
    network: NeuralLanguageModel, settings: Adaptation, scale: Scale | None
) -> LanguageModel:
    model = network
    if settings.temperature is not None:
        model = Tempered(network, settings.temperature)
    if settings.samples is not None:
        return _sampled(model, settings)
    if settings.adapt is None:
        return model
    if scale is None:
        raise UsageError("dynamic evaluation needs the scale of gradients", "measure it first")
    return Dynamic(model, scale(network), settings.adapt)


def _sampled(model: NeuralLanguageModel, settings: Adaptation) -> DropoutSamples:
    assert settings.samples is not None
    scale = 1.0 if settings.dropout_scale is None else settings.dropout_scale
    return DropoutSamples(model, settings.samples, scale=scale)


def _check_counts(settings: Adaptation) -> None:
    """Refuse settings that models of counts do not have."""
    if settings.adapt is not None:
        raise UsageError(
            "models of counts have no weights to adapt", "use a cache instead (--cache)"
        )
    if settings.samples is not None:
        raise UsageError("models of counts have no dropout", "drop --samples")
    if settings.temperature is not None:
        raise UsageError("models of counts have no softmax temperature", "drop --temperature")


def gradient_scale(
    model: LanguageModel,
    text: EncodedText,
    *,
    boundary_id: int,
    chunk_length: int = 5,
    on_note: Callable[[str], None] = lambda note: None,
) -> GradientScale:
    """Measure the root mean squared gradient of each weight on training text.

    It is kept in the cache folder, under a name made of the weights and the text.
    """
    network = network_of(model)
    digest = hashlib.sha256(f"{text.content_hash} {len(text)} {chunk_length}".encode())
    for name, tensor in network.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    folder = cache_folder() / "gradients"
    path = folder / f"{digest.hexdigest()[:32]}.safetensors"
    device = next(network.parameters()).device
    if path.is_file():
        try:
            tensors, _ = checkpoint.read(path)
            return GradientScale({name: tensor.to(device) for name, tensor in tensors.items()})
        except ElmanError:
            pass  # damaged: measured again
    num_tokens = min(text.num_tokens, STATISTICS_TOKENS)
    on_note(f"measuring the gradients of {num_tokens:,} tokens of the training text, once")
    scale = GradientScale(_root_mean_squares(model, text, boundary_id, chunk_length))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sweep(folder)
        checkpoint.write(path, scale.rms, {})
    except (OSError, ElmanError):
        pass  # it only saves time
    return scale


def _root_mean_squares(
    model: LanguageModel, text: EncodedText, boundary_id: int, chunk_length: int
) -> dict[str, torch.Tensor]:
    batch_size = max(1, min(STATISTICS_LANES, text.num_tokens // chunk_length))
    lanes = Lanes(text, boundary_id=boundary_id, batch_size=batch_size, chunk_length=chunk_length)
    own = copy.deepcopy(model)  # its parameters may not require gradients
    parameters = dict(network_of(own).eval().requires_grad_(True).named_parameters())
    sums = {name: torch.zeros_like(one) for name, one in parameters.items()}
    assert is_neural(own)
    state, number = own.initial_state(batch_size), 0
    for batch in lanes:
        moved = batch.to(str(device_of(state)))
        with torch.enable_grad():
            hidden, after = own.hidden(moved.tokens_BT, state)
            logprobs = own.head.logprobs(hidden.dropped_BTH, moved.targets_BT, hidden.contexts_BTO)
            loss = -logprobs.mean()
        gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        for total, gradient in zip(sums.values(), gradients, strict=True):
            if gradient is not None:
                total.addcmul_(gradient, gradient)
        state, number = after.detach(), number + 1
        if lanes.epoch or number * batch_size * chunk_length >= STATISTICS_TOKENS:
            break
    return {name: (total / number).sqrt_() for name, total in sums.items()}


def tune(
    model: LanguageModel,
    settings: Adaptation,
    text: EncodedText,
    scale: Scale | None,
    *,
    boundary_id: int,
    line_end: int | None = None,
    on_trial: Callable[[Trial], None] = lambda trial: None,
) -> list[Adaptation]:
    """Find settings, beginning with `settings`, that make validation text most probable: for each
    model of a mixture its own."""
    if text.num_tokens == 0:
        raise ElmanError("cannot tune: the text is empty", "check the file")
    models = model.models if isinstance(model, Mixture) else [model]
    found = []
    for number, one in enumerate(models):
        how = _Tuning(one, text, scale, boundary_id, line_end, number, on_trial)
        found.append(how.tuned(settings))
    return found


@dataclass
class _Tuning:
    model: LanguageModel
    text: EncodedText
    scale: Scale | None
    boundary_id: int
    line_end: int | None
    number: int
    on_trial: Callable[[Trial], None]

    def __post_init__(self) -> None:
        self._beginning = _beginning(self.text, TUNED_TOKENS)

    def tuned(self, settings: Adaptation) -> Adaptation:
        if is_neural(self.model):
            if settings.temperature is not None:
                settings = self._tuned_prediction(settings)
            if settings.adapt is not None:
                settings = replace(settings, adapt=self._tuned_updates(settings, settings.adapt))
        if settings.cache is not None:
            settings = replace(settings, cache=self._tuned_cache(settings, settings.cache))
        return settings

    def _tuned_prediction(self, settings: Adaptation) -> Adaptation:
        """Find the temperature, and before it the scale of dropout for samples."""
        coarse, fine = TEMPERATURE_STEPS

        @cache
        def best(scale: float | None) -> tuple[float, float]:
            return self._best_temperature(replace(settings, dropout_scale=scale), *coarse)

        scale = settings.dropout_scale
        if settings.samples is not None and scale is None:
            scale = FIRST_DROPOUT_SCALE
            for step in (-0.1, 0.1):
                while 0 < (following := round(scale + step, 1)) <= 1:
                    if not best(following) < best(scale):
                        break
                    scale = following
        settings = replace(settings, dropout_scale=scale, temperature=best(scale)[1])
        return replace(settings, temperature=self._best_temperature(settings, *fine)[1])

    def _best_temperature(
        self, settings: Adaptation, factor: float, number: int
    ) -> tuple[float, float]:
        """The lowest nats per token of `number` temperatures in either direction, and where."""
        assert settings.temperature is not None
        assert is_neural(self.model)
        tried = [round(settings.temperature * factor**i, 4) for i in range(-number, number + 1)]
        model: LanguageModel = Temperatures(self.model, tried)
        place = ""
        if settings.samples is not None:
            model = _sampled(cast(NeuralLanguageModel, model), settings)
            place = f"dropout_scale={model.scale:g} "
        nats = -self._logprobs(model).mean(axis=0)
        for temperature, each in zip(tried, nats.tolist(), strict=True):
            self._tell(f"{place}temperature={temperature:g}", each)
        found = int(np.nanargmin(nats))
        return float(nats[found]), tried[found]

    def _tuned_updates(self, settings: Adaptation, config: DynamicConfig) -> DynamicConfig:
        best_N: Logprobs | None = None
        num_trials = 0

        @cache
        def nats(config: DynamicConfig) -> float:
            """Nats per token; infinite if weights became too large."""
            nonlocal best_N, num_trials
            adapted = _adapted(  # which measures the gradients, the first time
                self.model, replace(settings, adapt=config, cache=None), self.scale
            )
            start, num_trials = time.perf_counter(), num_trials + 1
            found_N = self._logprobs(adapted, best_N)
            mean = -float(found_N.mean())
            if best_N is not None:  # of the tokens that both have read
                mean = float((best_N[: len(found_N)] - found_N).mean()) - float(best_N.mean())
            if math.isfinite(mean) and (best_N is None or mean < -float(best_N.mean())):
                best_N = found_N
            setting = f"adapt.rate={config.rate:g} adapt.decay={config.decay:g}"
            seconds, left = time.perf_counter() - start, max(0, FEWEST_TRIALS - num_trials)
            self._tell(setting, mean, len(found_N), seconds, left)
            return mean if math.isfinite(mean) else math.inf

        def with_rate(rate: float) -> float:
            return nats(replace(config, rate=rate))

        def with_decay(decay: float) -> float:
            return nats(replace(config, decay=decay))

        config = replace(config, rate=_climbed(config.rate, 2.0, with_rate))
        config = replace(config, decay=_climbed(config.decay, 2.0, with_decay))
        return replace(config, rate=_climbed(config.rate, 2.0, with_rate))

    def _logprobs(self, model: LanguageModel, best_N: Logprobs | None = None) -> Logprobs:
        """Log probabilities of the beginning of the text, or of the part of it after which they are
        clearly worse than `best_N`: (N), or (N, K) by temperature."""
        found, num_tokens, next_look = list[Logprobs](), 0, TUNED_AT_LEAST
        for logprobs, _ in scored_tokens(
            model, self._beginning, boundary_id=self.boundary_id, line_end=self.line_end
        ):
            found.append(logprobs.cpu().numpy())
            num_tokens += len(logprobs)
            if best_N is not None and num_tokens >= next_look:
                if _is_clearly_worse(np.concatenate(found), best_N):
                    break
                next_look = num_tokens + LEARNT_LENGTH
        return np.concatenate(found)

    def _tell(
        self,
        setting: str,
        nats: float,
        num_tokens: int | None = None,
        seconds: float = 0.0,
        left: int = 0,
    ) -> None:
        read = self._beginning.num_tokens if num_tokens is None else num_tokens
        self.on_trial(Trial(self.number, setting, exp(nats), read, seconds, left))

    def _tuned_cache(self, settings: Adaptation, config: CacheConfig) -> CacheConfig:
        best, lowest = config, math.inf
        cached = _adapted(self.model, settings, self.scale)
        assert isinstance(cached, Cached)
        logprobs_N, by_theta = self._with_cache(cached)
        for theta, cache_N in zip(THETAS, by_theta, strict=True):
            known_N = ~np.isnan(cache_N)  # the cache has something
            (_, weight), mean, _ = maximise(np.stack([logprobs_N[known_N], cache_N[known_N]]))
            config = replace(config, theta=theta, weight=round(float(weight), 4))
            found = f"cache.theta={theta:g} cache.weight={config.weight:g}"
            self._tell(found, -mean, len(logprobs_N))
            if -mean < lowest:
                best, lowest = config, -mean
        return best

    def _with_cache(self, cached: Cached) -> tuple[Logprobs, list[Logprobs]]:
        """The tokens' log probabilities by the model, and by the cache for each theta."""
        own: list[Logprobs] = []
        by_theta: list[list[Logprobs]] = [[] for _ in THETAS]
        with reading(cached):
            state = cached.initial_state(1)
        text = _beginning(self.text, TUNED_CACHE_TOKENS)
        chunks = in_order(text, self.boundary_id, self.line_end, device_of(state))
        for tokens_1T, targets_1T, ends in chunks:
            with reading(cached):
                logprobs_1T, caches, state = cached.parts(tokens_1T, targets_1T, state, THETAS)
                state = cached.next_text(state, targets_1T[:, -1]) if ends else state
            own.append(logprobs_1T[0].double().cpu().numpy())
            for part, cache_1T in zip(by_theta, caches, strict=True):
                part.append(cache_1T[0].double().cpu().numpy())
        return np.concatenate(own), [np.concatenate(part) for part in by_theta]


def _is_clearly_worse(found_N: Logprobs, best_N: Logprobs) -> bool:
    differences_N = best_N[: len(found_N)] - found_N
    if not np.isfinite(differences_N).all():
        return True
    error = differences_N.std() / math.sqrt(len(differences_N))
    return bool(differences_N.mean() > CLEARLY * error)


def _climbed(value: float, factor: float, nats: Callable[[float], float]) -> float:
    """Multiply and divide `value` by `factor` for as long as that makes the text more probable."""
    for each in (factor, 1 / factor):
        for _ in range(MOST_FACTORS):
            if not nats(value * each) < nats(value):
                break
            value *= each
    return value


def _beginning(text: EncodedText, num_tokens: int) -> EncodedText:
    return EncodedText(text.ids[:num_tokens], num_bytes=0)


Logprobs = NDArray[np.float64]
