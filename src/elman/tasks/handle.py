"""The handle of an opened run, which `elman.load` returns. Each task has its own subclass.

`LM` is not a subclass: an ARPA file or a mixture is not a run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, Self

from elman.tasks import Task, task_named
from elman.tasks.describe import describe_run
from elman.tasks.opening import OpenedRun


class Handle(ABC):
    """An opened run folder."""

    what: ClassVar[str]
    """What it is, with an article, for messages."""
    model: Any

    def __init__(self, name: str, run: OpenedRun) -> None:
        self.name = name
        self.run = run
        self.model = run.model

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def __dir__(self) -> Iterable[str]:
        """What completion offers: not the names that other modules use."""
        return sorted(set(super().__dir__()) - {"described", "kind", "of_run", "task", "what"})

    @classmethod
    def of_run(cls, name: str, run: OpenedRun) -> Self:
        return cls(name, run)

    @property
    def task(self) -> Task:
        return task_named(self.run.config.task)

    @property
    def kind(self) -> str:
        """The kind of its model; "model" if its settings name none."""
        return str(getattr(self.run.config.model, "kind", "model"))

    @abstractmethod
    def info(self) -> dict[str, Any]:
        """The values that `elman info` prints."""

    def described(self, what: str, **details: Any) -> dict[str, Any]:
        """Values for `elman info`: `what` in a phrase, `details`, and those of the run."""
        about = {"name": self.name, "kind": self.kind, "what": what}
        return {**about, **details, **describe_run(self.run)}
