"""The table of tasks. Everything else about a task is in its own folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from elman.base.errors import UsageError
from elman.base.tables import is_outside, look_up, plugins
from elman.tasks.task import Draft, OpenedModel, Option, Proposal, Route, Task, TaskData

__all__ = [
    "TASKS",
    "Draft",
    "OpenedModel",
    "Option",
    "Proposal",
    "Route",
    "Task",
    "TaskData",
    "all_tasks",
    "built_in_tasks",
    "task_named",
]

TASKS = {
    "lm": "elman.tasks.language_model:LM",
    "window": "elman.tasks.language_model:WINDOW",
    "maxent": "elman.tasks.language_model:MAXENT",
    "ngram": "elman.tasks.ngram:NGRAM",
    "snm": "elman.tasks.snm:SNM",
    "infinigram": "elman.tasks.infinigram:INFINIGRAM",
    "tagger": "elman.tasks.tagging:TAGGER",
    "classifier": "elman.tasks.classification:CLASSIFIER",
    "translator": "elman.tasks.translation:TRANSLATOR",
    "captioner": "elman.tasks.captioning:CAPTIONER",
    "conditional": "elman.tasks.conditional:CONDITIONAL",
    "elmo": "elman.tasks.elmo:ELMO",
}


def task_named(name: str) -> Task:
    """Return the task of this name, or "package.module:NAME", which is then its name."""
    task = look_up(TASKS, name, "task")
    if not isinstance(task, Task):
        raise UsageError(f"'{name}' is not a task", "name a value of the class elman.tasks.Task")
    return task if name in TASKS else replace(task, name=name)


def built_in_tasks() -> Iterator[Task]:
    """The tasks of the table."""
    return map(task_named, TASKS)


def all_tasks() -> Iterator[Task]:
    """The tasks of the table, and those from outside that ELMAN_PLUGINS names.

    One that cannot be imported is left out; the command line prints a note about it.
    """
    yield from built_in_tasks()
    for name in filter(is_outside, plugins()):
        try:
            task = task_named(name)
        except UsageError:
            continue
        yield task
