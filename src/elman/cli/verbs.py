"""Commands that use a model of one task, such as `elman tag`, made from the task's declaration.

The task declares a function whose first parameter is the handle. The command takes MODEL and
--device instead, and opens the model; if the parameter is called `handles`, it takes two models or
more. An optional function `check_VERB` in the same module checks
the options before a large model is read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import import_module
from inspect import Parameter, Signature
from typing import Annotated, Any

import typer

from elman.base.errors import UsageError
from elman.base.tables import PLUGINS_VARIABLE, imported
from elman.cli.train import train_command
from elman.tasks import Task
from elman.terminal.options import Device, argument, evaluated_signature, parameter

NamedCommand = tuple[str, Callable[..., None]]


def verbs(task: Task) -> Iterator[NamedCommand]:
    """Yield every verb of a task, with its command, then its shortcuts."""
    for verb, function in task.verbs.items():
        yield verb, _command(task, verb, imported(function))
    for shortcut in task.shortcuts:
        yield shortcut.name, train_command(task, shortcut)


def add_commands(app: typer.Typer, task: Task, commands: Iterable[NamedCommand]) -> list[str]:
    """Add commands of a task; return a note for each that is left out, its name being taken."""
    notes = []
    for name, command in commands:
        taken = {one.name for one in app.registered_commands}
        if name in taken | {one.name for one in app.registered_groups}:
            notes.append(
                f"{PLUGINS_VARIABLE}: the command '{name}' of {task.name} is left out: "
                "there is another of this name"
            )
        else:
            app.command(name)(command)
    return notes


def _command(task: Task, verb: str, function: Callable[..., None]) -> Callable[..., None]:
    def command(**given: Any) -> None:
        model, device = given.pop("model"), given.pop("device")
        if check := getattr(sys.modules[function.__module__], f"check_{verb}", None):
            check(**given)
        if several and len(model) < 2:
            raise UsageError(f"{verb} needs two models or more", "name another MODEL")
        load = partial(import_module("elman.api").load, device=device, kind=imported(task.handle))
        function(**{first.name: [*map(load, model)] if several else load(model)}, **given)

    first, *own = evaluated_signature(function).parameters.values()
    several = first.name == "handles"
    chosen: Any = Annotated[str, argument("MODEL", f"The run folder of {task.what}.")]
    if several:
        chosen = Annotated[list[str], argument("MODEL...", f"Run folders, each of {task.what}.")]
    parameters = [parameter("model", chosen, Parameter.empty)]
    parameters += [p.replace(kind=Parameter.KEYWORD_ONLY) for p in own]
    place = next((i for i, p in enumerate(parameters) if p.name == "json"), len(parameters))
    parameters.insert(place, parameter("device", Device, "auto"))
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__doc__ = function.__doc__
    return command
