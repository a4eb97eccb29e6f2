"""The handle of a language model that adapts to what it reads.

    reader = elman.load("runs/mine").adapting(adapt=True, cache=True)
    later = reader.after(chapter_1)                 another reader; `reader` stays as it is
    later.perplexity(chapter_2)                     predicts with what it has learnt, and goes on
    later.save("memory.safetensors")

What is kept of the texts read, the memory, is a value: changed weights and the contents of the
cache. Each measurement begins with the memory of its handle and leaves it alone; `after` returns a
handle with more. To roll back is to use an earlier handle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from elman.base.config import from_dict
from elman.base.errors import ElmanError, UsageError
from elman.base.result_rows import Rows
from elman.batches.encoded import EncodedText, encode_files
from elman.decode.options import DecodeOptions
from elman.decode.prefix import device_of
from elman.evaluate.adaptation import Adaptation, Trial, adapt, gradient_scale, tune
from elman.evaluate.perplexity import in_order
from elman.models.cache import CacheConfig
from elman.models.dynamic import DynamicConfig, GradientScale
from elman.models.interface import LanguageModel, learns, memory_of, next_text, reading, with_memory
from elman.nn.state import State
from elman.runs.origin import check_origin
from elman.tasks.language_model_handle import LM, Completion, Vectors
from elman.text.sources import Paths, expand, listed
from elman.train import checkpoint

MEMORY = "memory"
"""The kind of file that `save` writes."""


class AdaptedLM(LM):
    """A language model that adapts, with a memory to begin with."""

    def __init__(self, base: LM, model: LanguageModel, settings: Sequence[Adaptation]) -> None:
        super().__init__(base.name, model, base.tokenizer, base.runs, base.parts)
        self.base = base
        self.settings = tuple(settings)
        """How it adapts: one for each model of a mixture, or one for all."""

    @property
    def kind(self) -> str:
        return self.base.kind

    @property
    def notes(self) -> list[str]:
        return self.base.notes

    @property
    def adaptation(self) -> list[dict[str, Any]]:
        """The settings as plain values."""
        found = [asdict(one) for one in self.settings]
        return [{name: part for name, part in one.items() if part is not None} for one in found]

    @cached_property
    def memory(self) -> State:
        """What it begins with: changed weights, contents of the cache."""
        with reading(self.model):
            return memory_of(self.model, self.model.initial_state(1))

    def applied_to(self, base: LM) -> AdaptedLM:
        """Another model, or the same in another form, that adapts with these settings."""
        scale = _Scales(base, self.settings[0].adapt)
        return AdaptedLM(base, adapt(base.model, self.settings, scale), self.settings)

    def after(self, text: str | Sequence[int]) -> AdaptedLM:
        """The model after reading a text, with what it has learnt and cached."""
        ids = np.asarray(self._ids(text), np.int64)
        if not len(ids):
            return self
        model = self.model
        with reading(model):
            state = model.initial_state(1)
            encoded, device = EncodedText(ids, num_bytes=0), device_of(state)
            for tokens_1T, targets_1T, ends in in_order(
                encoded, self.tokenizer.boundary_id, self.line_end, device
            ):
                _, state = model.logprobs(tokens_1T, targets_1T, state)
                state = next_text(model, state, targets_1T[:, -1]) if ends else state
            return self._with(memory_of(model, state))

    def save(self, path: str | Path) -> None:
        """Write the memory to a file."""
        header = {"kind": MEMORY, "tokenizer": self.tokenizer.hash}
        checkpoint.write(Path(path), self.memory.flatten(), header)

    def restored(self, path: str | Path) -> AdaptedLM:
        """The model with a memory that was saved."""
        tensors, header = checkpoint.read(Path(path))
        own = self.memory.flatten()
        alike = {name: tensor.shape for name, tensor in tensors.items()} == {
            name: tensor.shape for name, tensor in own.items()
        }
        if header.get("kind") != MEMORY or header.get("tokenizer") != self.tokenizer.hash:
            raise ElmanError(f"{path} is not a memory of this model", "name another file")
        if not alike:
            raise ElmanError(
                f"{path} is the memory of a model of another size, or with another cache",
                "adapt with the settings with which it was saved",
            )
        checkpoint.check_finite(tensors, Path(path))
        moved = {name: tensor.to(own[name].device) for name, tensor in tensors.items()}
        return self._with(State.unflatten(moved))

    def _with(self, memory: State) -> AdaptedLM:
        return AdaptedLM(self.base, with_memory(self.model, memory), self.settings)

    def _having_learnt(self, prompt: str | Sequence[int]) -> AdaptedLM:
        """The model to continue a prompt with: its weights have learnt from it. Reading it once
        more fills the cache."""
        if not learns(self.model):
            return self
        learnt, before = self.after(prompt).memory.flatten(), self.memory.flatten()
        kept = {
            name: learnt[name] if name.rpartition(".")[2] == "weights" else before[name]
            for name in before
        }
        return self._with(State.unflatten(kept))

    def next(self, prefix: str, k: int = 10) -> Rows[tuple[str, float]]:
        return LM.next(self._having_learnt(prefix), prefix, k)

    def generate(self, prompt: str = "", **options: Any) -> Any:
        return LM.generate(self._having_learnt(prompt), prompt, **options)

    def _complete(
        self, prompt: str | Sequence[int], stop: Sequence[str], options: DecodeOptions
    ) -> list[Completion]:
        return LM._complete(self._having_learnt(prompt), prompt, stop, options)

    def adapting(self, **how: Any) -> AdaptedLM:
        return self.base.adapting(**how)

    def inside(self, *arguments: Any, **options: Any) -> Any:
        return self.base.inside(*arguments, **options)

    def embeddings(self, *arguments: Any, **options: Any) -> Iterator[Vectors]:
        return self.base.embeddings(*arguments, **options)


def adapting(
    base: LM,
    *,
    adapt_with: bool | Mapping[str, Any] | DynamicConfig,
    cache: bool | Mapping[str, Any] | CacheConfig,
    temperature: float | None,
    samples: int | None,
    dropout_scale: float | None,
    tune_on: Paths,
    on_trial: Any,
    on_note: Any,
) -> AdaptedLM:
    """See `LM.adapting`."""
    if not base.is_normalised:
        raise UsageError(
            f"{base.name} gives scores that do not sum to one (stupid-backoff), so it cannot adapt",
            "train it with another --smoothing, such as kneser-ney",
        )
    settings = Adaptation(
        adapt=_config(DynamicConfig, adapt_with, "adapt"),
        cache=_config(CacheConfig, cache, "cache"),
        temperature=temperature,
        samples=samples,
        dropout_scale=dropout_scale,
    )
    if settings.adapt is None and settings.cache is None and temperature is None:
        if listed(tune_on):
            settings = replace(settings, temperature=1.0)
        elif samples is None:
            raise UsageError("no way to adapt was chosen", "set adapt or cache, or both, to True")
    scale = _Scales(base, settings.adapt, on_note or _ignored)
    found = [settings]
    if listed(tune_on):
        found = tune(
            base.model,
            settings,
            encode_files(expand(tune_on), base.tokenizer),
            scale,
            boundary_id=base.tokenizer.boundary_id,
            line_end=base.line_end,
            on_trial=on_trial or _ignored,
        )
    return AdaptedLM(base, adapt(base.model, found, scale), found)


class _Scales:
    """The scale of gradients of each network, measured at first use."""

    def __init__(
        self,
        base: LM,
        config: DynamicConfig | None,
        on_note: Callable[[str], None] = lambda note: None,
    ) -> None:
        self._base, self._config, self._on_note = base, config, on_note
        self._known: dict[int, GradientScale] = {}

    def __call__(self, model: LanguageModel) -> GradientScale:
        if id(model) not in self._known:
            assert self._config is not None
            text = encode_files(self._files(model), self._base.tokenizer)
            self._known[id(model)] = gradient_scale(
                model,
                text,
                boundary_id=self._base.tokenizer.boundary_id,
                chunk_length=self._config.chunk_length,
                on_note=self._on_note,
            )
        return self._known[id(model)]

    def _files(self, model: LanguageModel) -> list[Path]:
        assert self._config is not None
        given = self._config.statistics
        hint = "give some of it with --set adapt.statistics=FILE"
        if given:
            return expand(given)
        lms = [lm for lm in (self._base, *self._base.parts) if lm.model is model and lm.runs]
        if not lms:
            raise UsageError(f"{self._base.name} does not say what it was trained on", hint)
        run = lms[0].runs[0]
        try:
            check_origin(run.path, run.config)
            return expand(run.config.data.train)
        except ElmanError as error:
            message = f"the training text, for the scale of gradients: {error.message}"
            raise UsageError(message, hint) from error


def _config(cls: Any, given: Any, name: str) -> Any:
    """The settings of one way to adapt; None if it was not chosen."""
    if given is False or given is None:
        return None
    if isinstance(given, cls):
        return given
    return from_dict(cls, {} if given is True else given, name)


def _ignored(trial: Trial | str) -> None:
    pass
