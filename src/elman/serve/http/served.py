"""What is served: models by name, the abilities of each, and limits.

Requests name a model by its served name, never by a path, so they cannot open files.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

from torch import nn

from elman.api import LM, load, networks
from elman.base.errors import ElmanError, UsageError
from elman.models.interface import is_neural
from elman.models.recurrent import RecurrentLM
from elman.nn.attention import Attention
from elman.nn.heads.head import Head
from elman.nn.quantise import quantise as quantise_weights
from elman.runs.packaged import located
from elman.runs.run_folder import CONFIG_FILE, MODEL_FILE, runs_in
from elman.serve.engine import Engine, Notify
from elman.serve.http.errors import ApiError
from elman.serve.http.model_card import model_card
from elman.serve.http.schema import ModelCard
from elman.serve.limits import Limits
from elman.serve.prefixes import PrefixCache
from elman.serve.refusals import Unavailable
from elman.serve.serving import Serving
from elman.serve.stream_batch import StreamBatch
from elman.tasks import Route, task_named
from elman.tasks.opening import read_config
from elman.text.words import split_words
from elman.tokens.tokenizer import Tokenizer
from elman.train.checkpoint import mapped_weights

WIDTH_BYTES = 12
"""The widest layer's activations at a position, and what is computed from them."""
PAIR_BYTES = 128
"""The attention of an output's tokens, up to twice as many, to an input's token, as JSON."""
CACHE_BYTES = 64 << 20
"""Memory limit of a model's prefix cache."""


def _is_lm(handle: object) -> bool:
    return isinstance(handle, LM)


def _continues(handle: object) -> bool:
    """Whether it is a language model, or one for each of several labels."""
    return _is_lm(handle) or hasattr(handle, "given")


LABELLED = ("complete", "score", "next", "tree")
"""Abilities for which a model that takes a label needs one."""

ABILITIES: dict[str, Callable[[Any], bool]] = {
    "complete": _continues,
    "score": _continues,
    "next": _continues,
    "tree": lambda handle: _continues(handle) or hasattr(handle, "beam_tree"),
    "embed": lambda handle: (
        gives_word_vectors(handle) or (_is_lm(handle) and is_neural(handle.model))
    ),
    "inside": lambda handle: _is_lm(handle) and isinstance(handle.model, RecurrentLM),
}
"""The abilities of language models and embedders, and how a handle shows that it has them; those
of single tasks are their routes."""


DEEDS = {
    "next": "predict the next token",
    "tree": "show a beam search",
    "inside": "be looked into",
}
"""What a model that lacks an ability cannot do, where the ability's name is no verb."""


def gives_word_vectors(handle: object) -> bool:
    """Whether it is no language model, but gives vectors of words in context."""
    return not _is_lm(handle) and hasattr(handle, "contextual")


def vector_size(handle: Any) -> int:
    """The size of the vectors of a model that can embed."""
    size: int = (
        handle.embedder.size if gives_word_vectors(handle) else handle.model.head.hidden_size
    )
    return size


class Served:
    """One model under its served name. Close it when done."""

    def __init__(
        self,
        name: str,
        handle: Any,
        limits: Limits,
        notify: Notify | None = None,
        ways: Mapping[str, Any] | None = None,
    ) -> None:
        """`ways` are those in which requests may ask a language model to adapt, with settings."""
        self.name = name
        self._adapted = _adapted_handles(handle, ways or {})
        self.handle = handle
        self.created = int(time.time())
        self.kind: str = getattr(handle, "kind", "model")
        declared: Sequence[Route] = () if handle.task is None else handle.task.routes
        self.routes = [route for route in declared if route.name not in ABILITIES]
        self.notes = [f"{name}: {note}" for note in getattr(handle, "notes", ())]
        self.notes += [
            f"{name}: the server has another route '{route.name}', so that of the model is left out"
            for route in declared
            if route not in self.routes
        ]
        """Warnings about the model, usually none."""
        self.abilities = [ability for ability, has in ABILITIES.items() if has(handle)]
        self.abilities += [route.name for route in self.routes]
        self.labels = list(handle.labels) if hasattr(handle, "given") else []
        self._limits, self._notify, self._ways = limits, notify, ways
        self._given: dict[str, Served] = {}
        self._files: dict[Path, tuple[int, ...]] = {}
        model = getattr(handle, "model", None)
        layers = list(_layers(model)) if isinstance(model, nn.Module) else []
        weights = [w for one in layers for w in one.parameters(recurse=False) if w.ndim > 1]
        self._widest = max((len(weight) for weight in weights), default=0)
        self._attends = any(isinstance(one, Attention) for one in layers)
        self.engine: Engine | None = None
        if _is_lm(handle):
            batch = StreamBatch(
                handle.decoding,
                boundary_id=handle.tokenizer.boundary_id,
                end_ids=handle.end_ids(),
                max_streams=limits.max_streams,
                cache=PrefixCache(CACHE_BYTES),
            )
            self.engine = Engine(batch, max_waiting=limits.max_waiting, notify=notify, name=name)

    @cached_property
    def card(self) -> ModelCard:
        return model_card(self.handle)

    def given(self, label: str | None) -> Served:
        """The model of one label, which is opened at its first use."""
        if label not in self.labels:
            known = ", ".join(self.labels[:10]) + (", ..." if len(self.labels) > 10 else "")
            message = f"the model '{self.name}' takes a label: {known}"
            if not self.labels:
                message = f"the model '{self.name}' takes no label"
            raise ApiError(400, message, param="label")
        assert label is not None
        if label not in self._given:
            handle = self.handle.given(label)
            self._given[label] = Served(self.name, handle, self._limits, self._notify, self._ways)
        return self._given[label]

    def adapting(self, *, adapt: bool | None, cache: bool | None) -> Any:
        """The handle for a request: one that adapts as the request asks."""
        asked = tuple(name for name, on in (("adapt", adapt), ("cache", cache)) if on)
        if not asked:
            return self.handle
        if asked not in self._adapted:
            flags = " ".join(f"--{way}" for way in asked)
            message = f"{self.name} is not served with {flags}"
            raise ApiError(400, message, param=asked[0])
        return self._adapted[asked]

    def problems(self) -> list[str]:
        """What is wrong with the model's files since it was opened, in sentences; usually none."""
        try:
            if self.engine is not None:
                self.engine.check_unchanged()
        except Unavailable as error:
            return [f"{self.name}: {error.message}"]
        changed = [path for path, status in self._files.items() if _status(path) != status]
        return [f"{self.name}: {path} was changed since it was loaded" for path in changed]

    def watch(self, path: Path, mapped: Iterable[Path] = ()) -> None:
        """Let `problems` tell if a model's file, or the weights in its folder, change.

        A `mapped` file that is written to makes the model unavailable; one that is replaced by
        renaming does not, since the old file stays while a process maps it.
        """
        files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
        self._files = {file: _status(file) for file in (*files, *mapped)}
        self._mapped = list(mapped)
        if self._mapped and self.engine is not None:
            self.engine.checks.append(self._check_mapped)

    def _check_mapped(self) -> None:
        for path in self._mapped:
            status, found = self._files[path], _status(path)
            if found != status and found[2:] == status[2:]:
                raise ElmanError(
                    f"{path} was changed or cut short while it was in use",
                    "restore it; replace a model by renaming a new file, not by writing into it",
                )

    def reading_bytes(self, text: str) -> int:
        """Upper bound of the memory to read a text as a whole, as all but language models do."""
        if not self._widest:
            return 0
        pair = getattr(self.handle, "tokenizers", None)
        tokenizer = getattr(pair, "source", None) or getattr(self.handle, "tokenizer", None)
        encode = tokenizer.encode if isinstance(tokenizer, Tokenizer) else split_words
        number = len(encode(text))
        pairs = number * number if self._attends else 0
        return number * self._widest * WIDTH_BYTES + pairs * PAIR_BYTES

    def close(self) -> None:
        for one in self._given.values():
            one.close()
        if self.engine is not None:
            self.engine.close()


def open_models(
    serving: Serving, *, notify: Notify | None = None, mapped: bool = False
) -> dict[str, Served]:
    """Open models given as `MODEL`, `name=MODEL`, or a folder of runs: all that it holds.

    `mapped`, for processes that are forked from this one, maps the weights of networks instead of
    reading them.
    """
    served: dict[str, Served] = {}
    try:
        for text in (one for model in serving.models for one in _inside(model)):
            name, path = split_name(text)
            if name in served:
                raise UsageError(
                    f"two models would be served as '{name}'", f"name one of them: other={path}"
                )
            with mapped_weights(mapped) as files:
                handle = load(path, device=serving.device)
            if serving.quantise is not None and _is_lm(handle):
                for network in networks(handle):
                    quantise_weights(network, serving.quantise)
            served[name] = Served(name, handle, serving.limits, notify, serving.ways)
            served[name].watch(located(path), files)
            if (engine := served[name].engine) is not None:
                engine.warm_up(serving.num_threads if mapped else 1)
    except BaseException:
        for one in served.values():
            one.close()
        raise
    return served


def _inside(model: str) -> list[str]:
    """The finished runs in a folder of runs; any other model as it is."""
    path = Path(model)
    if not path.is_dir() or (path / CONFIG_FILE).is_file() or not (runs := runs_in(path)):
        return [model]
    # A run that has just begun has no weights yet; one made by counting is written at its end.
    return [
        str(run)
        for run in runs
        if (run / MODEL_FILE).is_file() or task_named(read_config(run).task).fit is not None
    ]


def _adapted_handles(handle: Any, ways: Mapping[str, Any]) -> dict[tuple[str, ...], Any]:
    """The handles of a language model that adapt, for each choice of `ways`; models of counts have
    only the cache."""
    found: dict[tuple[str, ...], Any] = {}
    if _is_lm(handle):
        for number in range(1, len(ways) + 1):
            for chosen in combinations(ways, number):
                with suppress(UsageError):
                    found[chosen] = handle.adapting(**{way: ways[way] for way in chosen})
    return found


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    """The module and all within it that read whole texts: neither embeddings nor output layers,
    whose matrices are as tall as the vocabulary."""
    yield module
    for child in module.children():
        if not isinstance(child, (nn.Embedding, Head)):
            yield from _layers(child)


def _status(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_size, status.st_mtime_ns, status.st_ino


def split_name(text: str) -> tuple[str, str]:
    """Split `name=MODEL`; the default name is the last part of each path."""
    found = re.fullmatch(r"([\w.:-]+)=(.+)", text)
    if found and not Path(text).exists():
        return found[1], found[2]
    terms = text.split("+") if not Path(text).exists() else [text]
    names = []
    for term in terms:
        weight, star, path = term.strip().rpartition("*")
        stem = Path(path.strip().rstrip("/")).name
        stem = re.sub(r"(?i)\.(arpa|lm)(\.gz|\.zst)?$", "", stem) or "model"
        names.append(f"{weight.strip()}{star}{stem}")
    return "+".join(names), text
