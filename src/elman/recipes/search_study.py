"""The study of a search: what is searched, the settings of its trials, and how they ended."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elman.base.config import merge, nested
from elman.base.errors import ElmanError
from elman.base.files import lock
from elman.recipes.resolve import read_over
from elman.recipes.search_space import Dimension, converted, dimensions
from elman.tasks import task_named

if TYPE_CHECKING:
    import optuna

JOURNAL_FILE = "journal.log"
RUNGS = 5
"""Validations of trial 0; others are validated after as many tokens."""
LEAST_STEPS = RUNGS
UNPRUNED = 3
"""Trials that must have finished before one is pruned."""
WARMUP = 2
"""The first rung at which a trial is judged."""
WAIT = 0.05
"""Seconds between attempts to lock the folder of the study."""


@dataclass(frozen=True)
class Search:
    """A study in a folder."""

    folder: Path
    task: str
    automatic: Mapping[str, Any]
    """The settings of trial 0."""
    steps: int
    """The updates of trial 0."""
    speed: float | None
    """The tokens per second of trial 0; None: trials have equal tokens, not minutes."""
    device: str
    seed: int

    @property
    def space(self) -> list[Dimension]:
        return dimensions(self.automatic)

    def config(self, params: Mapping[str, Any], loop: Mapping[str, Any] | None = None) -> Any:
        """The configuration of a trial at equal tokens, with settings of the loop."""
        changes = self.changes(params)
        # What a trial leaves without a reader, such as dropout between layers of one, is dropped.
        base = merge(dict(self.automatic), nested(changes))
        asked = {"training": {"steps": self.num_steps(changes), **(loop or {})}}
        config, _ = read_over(task_named(self.task), base, asked)
        return config

    def changes(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of a trial that the search varies, by dotted name."""
        found: dict[str, Any] = {}
        for dimension in self.space:
            found |= dimension.changes(params[dimension.name])
        return converted(self.automatic, found)

    def values(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The setting of each dimension in a trial."""
        changes = self.changes(params)
        return {one.name: changes[one.settings[0]] for one in self.space}

    def rounded(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The value of each dimension in a trial: a place in the space."""
        return {one.name: one.rounded(params[one.name]) for one in self.space}

    def num_steps(self, changes: Mapping[str, Any]) -> int:
        """The updates in which a trial reads the tokens of trial 0."""
        training, steps = self.automatic["training"], float(self.steps)
        for name in ("batch_size", "chunk_length"):
            if before := training.get(name):
                steps *= before / changes.get(f"training.{name}", before)
        return max(LEAST_STEPS, round(steps))

    def study(self) -> optuna.Study:
        library = optuna_module()
        backend = library.storages.journal.JournalFileBackend(str(self.folder / JOURNAL_FILE))
        study: optuna.Study = library.create_study(
            storage=library.storages.JournalStorage(backend),
            study_name=self.task,
            load_if_exists=True,
            pruner=library.pruners.MedianPruner(
                UNPRUNED, n_warmup_steps=WARMUP, n_min_trials=UNPRUNED
            ),
        )
        return study


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Wait for the lock of the study, and hold it."""
    while True:
        try:
            descriptor = lock(folder)
            break
        except BlockingIOError:
            time.sleep(WAIT)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def optuna_module() -> Any:
    try:
        import optuna
    except ImportError as missing:
        raise ElmanError("searching needs Optuna", "pip install 'elman[search]'") from missing
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def best_trial(study: optuna.Study) -> optuna.trial.FrozenTrial | None:
    states = optuna_module().trial.TrialState
    done = study.get_trials(deepcopy=False, states=(states.COMPLETE,))
    return min(done, key=lambda trial: trial.value or 0.0, default=None)


def is_finished(study: optuna.Study, number: int) -> bool:
    found = study.get_trials(deepcopy=False)
    return number < len(found) and found[number].state.is_finished()


def seconds_of(study: optuna.Study) -> list[float]:
    """The times of finished trials."""
    states = optuna_module().trial.TrialState
    done = study.get_trials(deepcopy=False, states=(states.COMPLETE,))
    return [float(t.user_attrs["seconds"]) for t in done if "seconds" in t.user_attrs]


def first_seconds(study: optuna.Study) -> float:
    """The time of the first trial that finished, usually the automatic choice."""
    seconds = seconds_of(study)
    return seconds[0] if seconds else math.inf


def num_tried(study: optuna.Study) -> int:
    """Trials that were not cut short by the end of a process."""
    states = optuna_module().trial.TrialState
    wanted = (states.COMPLETE, states.PRUNED, states.RUNNING)
    found = study.get_trials(deepcopy=False)
    failed = [t for t in found if t.user_attrs.get("outcome", "").startswith("failed")]
    return sum(trial.state in wanted for trial in found) + len(failed)
