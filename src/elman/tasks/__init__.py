"""What can be trained: one module a task, and what each of them gives the runner.

A task is a module with three functions:

    choose(request, machine) -> Choice          automatic settings, and the sentences that tell them
    set_up(config, out, resume) -> Job          data read and encoded, vocabularies written to `out`
    open_model(path, config, header) -> (model, tokenizer)       a model to load weights into

`choose` is asked when a run is resolved, `set_up` when it begins or goes on, `open_model` when its
folder is opened to be used. A `Job` is a run's data together with all that is particular about it:
how a model is built, trained and judged, and what the card says. The runner (`recipes/run.py`) does
the rest, the same for every task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from elman.base.errors import UsageError

if TYPE_CHECKING:
    from torch import nn

    from elman.runs.run_config import DataConfig, RunConfig
    from elman.train.trainable import Trainable

TASKS: Mapping[str, str] = {
    "lm": "elman.tasks.language_model.task",
    "window": "elman.tasks.language_model.task",
    "maxent": "elman.tasks.language_model.task",
    "tagger": "elman.tasks.tagging.task",
    "classifier": "elman.tasks.classification.task",
    "translator": "elman.tasks.translation.task",
    "captioner": "elman.tasks.captioning.task",
    "conditional": "elman.tasks.conditional.task",
    "elmo": "elman.tasks.elmo.task",
}
"""The module of each task that the loop trains; n-grams are counted (`recipes/ngram.py`)."""


MODEL_KINDS = {"lm": "recurrent", "translator": "sequence_to_sequence"}
"""The kind of model that a task is about, where it is not called as the task is."""


def model_kind(task: str) -> str:
    """The kind of model that a task is about."""
    return MODEL_KINDS.get(task, task)


def check_kind(task: str, kind: str) -> None:
    """Refuse a kind of model that the module of the task cannot train."""
    tasks = {model_kind(other): other for other in TASKS}
    if kind in tasks and TASKS[tasks[kind]] != TASKS[task]:
        raise UsageError(
            f"a model of the kind {kind} is not what `elman train {task}` makes",
            f"write elman train {tasks[kind]}",
        )


def task_module(task: str) -> ModuleType:
    """The module of a task."""
    return import_module(TASKS[task])


@dataclass(frozen=True)
class Request:
    """What is known of a run before its settings are chosen."""

    task: str
    data: DataConfig
    """The data, as far as the user or the recipe named it."""
    base: dict[str, Any]
    """The recipe's settings, or none."""
    asked: dict[str, Any]
    """The user's own settings, which lie over everything else."""
    recipe: str | None
    """The recipe's name; None where the choices are to be automatic."""


@dataclass(frozen=True)
class Choice:
    """Settings for a run, and how to tell the user about them."""

    base: dict[str, Any]
    """What the user's own settings are laid over: the recipe's, or automatic ones."""
    asked: dict[str, Any]
    """The user's own settings, completed where one of them settles another."""
    notes: Callable[[RunConfig], Sequence[str]]
    """Sentences about the settings as they came out."""


class Job(Protocol):
    """A run's data, and what is particular about its task."""

    @property
    def valid_tokens(self) -> int:
        """How many tokens there are to validate on."""
        ...

    @property
    def test_tokens(self) -> int:
        """How many there are to test on; 0 where there is no test."""
        ...

    def scale(self) -> str:
        """How much data there is, as a phrase."""
        ...

    def build(self) -> nn.Module:
        """A fresh model; the runner has seeded the random numbers."""
        ...

    def task(self, model: nn.Module) -> Trainable:
        """What the loop works on."""
        ...

    def test(self, model: nn.Module, limit: int | None) -> Mapping[str, Any]:
        """Figures by name on the first `limit` test tokens (None: all); `tokens` says how many."""
        ...

    def describe(self) -> str:
        """What the model is, for the card: "A language model over characters (65 of them)"."""
        ...

    def uses(self) -> Sequence[str]:
        """Commands that use it, for the card."""
        ...


Opened = tuple["nn.Module", Any]
"""A model without its weights, and what turns its data into ids and back."""
