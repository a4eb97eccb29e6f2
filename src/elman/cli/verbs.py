"""Commands that use a model of one task (`elman tag`, say), made from the task's declaration.

The task gives a function whose first parameter is the handle; here it gets MODEL and --device, and
the model is opened. A function `check_VERB` beside it, where there is one, sees the options before
a large model is read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from inspect import Parameter, Signature
from typing import Annotated, Any

import typer

from elman.tasks import Task, all_tasks
from elman.tasks.task import imported
from elman.terminal.options import Device, evaluated_signature


def verbs() -> Iterator[tuple[str, Callable[..., None]]]:
    """Every verb of every task, with its command."""
    for task in all_tasks():
        for verb, function in task.verbs.items():
            yield verb, _command(task, verb, imported(function))


def _command(task: Task, verb: str, function: Callable[..., None]) -> Callable[..., None]:
    def command(**given: Any) -> None:
        model, device = given.pop("model"), given.pop("device")
        if check := getattr(sys.modules[function.__module__], f"check_{verb}", None):
            check(**given)
        load = import_module("elman.api").load
        handle = load(model, device=device, kind=task.part("handle"))
        function(**{first.name: handle}, **given)

    what = task.what.partition(" ")[2]
    chosen = Annotated[
        str,
        typer.Argument(metavar="MODEL", help=f"The run folder of a {what}.", show_default=False),
    ]
    first, *own = evaluated_signature(function).parameters.values()
    parameters = [
        Parameter("model", Parameter.KEYWORD_ONLY, annotation=chosen),
        *(parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in own),
    ]
    place = next((i for i, p in enumerate(parameters) if p.name == "json"), len(parameters))
    where = Parameter("device", Parameter.KEYWORD_ONLY, default="auto", annotation=Device)
    parameters.insert(place, where)
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__doc__ = function.__doc__
    return command
