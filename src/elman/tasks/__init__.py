"""The table of tasks: one line each. Everything else about a task lies in its own folder."""

from __future__ import annotations

from collections.abc import Iterator

from elman.base.tables import is_outside, look_up
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
    "task_named",
]

TASKS = {
    "lm": "elman.tasks.language_model:LM",
    "window": "elman.tasks.language_model:WINDOW",
    "maxent": "elman.tasks.language_model:MAXENT",
    "ngram": "elman.tasks.ngram:NGRAM",
    "snm": "elman.tasks.snm:SNM",
    "tagger": "elman.tasks.tagging:TAGGER",
    "classifier": "elman.tasks.classification:CLASSIFIER",
    "translator": "elman.tasks.translation:TRANSLATOR",
    "captioner": "elman.tasks.captioning:CAPTIONER",
    "conditional": "elman.tasks.conditional:CONDITIONAL",
    "elmo": "elman.tasks.elmo:ELMO",
}


def task_named(name: str) -> Task:
    """The task of this name, or the one that "package.module:NAME" says."""
    task: Task = look_up(TASKS, name, "task")
    return task


def all_tasks() -> Iterator[Task]:
    """Every task of the table, in its order."""
    return (task_named(name) for name in TASKS)


def task_key(task: Task, name: str) -> str:
    """What config.json calls the task: an outside one by the name that finds it again."""
    return name if is_outside(name) else task.name
