"""Commands that use a model of one task, such as `elman tag`, made from the task's declaration.

The task declares a function whose first parameter is the handle. The command takes MODEL and
--device instead, and opens the model. An optional function `check_VERB` in the same module checks
the options before a large model is read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from inspect import Parameter, Signature
from typing import Annotated, Any

from elman.base.tables import imported
from elman.tasks import Task, all_tasks
from elman.terminal.options import Device, argument, evaluated_signature, parameter


def verbs() -> Iterator[tuple[str, Callable[..., None]]]:
    """Yield every verb of every task, with its command."""
    for task in all_tasks():
        for verb, function in task.verbs.items():
            yield verb, _command(task, verb, imported(function))


def _command(task: Task, verb: str, function: Callable[..., None]) -> Callable[..., None]:
    def command(**given: Any) -> None:
        model, device = given.pop("model"), given.pop("device")
        if check := getattr(sys.modules[function.__module__], f"check_{verb}", None):
            check(**given)
        load = import_module("elman.api").load
        handle = load(model, device=device, kind=imported(task.handle))
        function(**{first.name: handle}, **given)

    chosen = Annotated[str, argument("MODEL", f"The run folder of {task.what}.")]
    first, *own = evaluated_signature(function).parameters.values()
    parameters = [parameter("model", chosen, Parameter.empty)]
    parameters += [p.replace(kind=Parameter.KEYWORD_ONLY) for p in own]
    place = next((i for i, p in enumerate(parameters) if p.name == "json"), len(parameters))
    parameters.insert(place, parameter("device", Device, "auto"))
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__doc__ = function.__doc__
    return command
