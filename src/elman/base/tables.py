"""Tables of names: choose a class by name, and import only what is chosen.

A table maps a name to `"package.module:attribute"`. Every table also accepts a name of that form,
for a task, a cell or an output layer from outside Elman.

Importing a module executes it. A name that comes from a file, such as a run folder's config.json,
is therefore imported only if the user named its package, on the command line or in Python (`trust`)
or in the environment variable ELMAN_PLUGINS. That a module is already imported does not count:
importing torch imports hundreds of modules, with functions that run commands or fetch files.
ELMAN_PLUGINS lists packages, or tasks by their full names; such a task adds its commands to the
command line.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any, TypeVar, cast

from elman.base.errors import UsageError, nearest

Table = Mapping[str, str]

T = TypeVar("T")

PLUGINS_VARIABLE = "ELMAN_PLUGINS"
_trusted: set[str] = set()


def is_outside(name: object) -> bool:
    """Whether `name` is of the form package.module:attribute."""
    return isinstance(name, str) and ":" in name


def trust(name: str) -> None:
    """Allow importing the package of `name`, package.module:attribute: the user gave it."""
    _trusted.add(_package(name))


def plugins() -> list[str]:
    """The names in ELMAN_PLUGINS: packages, or tasks of the form package.module:NAME."""
    return list(dict.fromkeys(os.environ.get(PLUGINS_VARIABLE, "").replace(",", " ").split()))


def look_up(table: Mapping[str, Any], name: str, what: str) -> Any:
    """Import the entry `name` of `table`, or an outside `name`; errors call it a `what`."""
    if name in table:
        return imported(table[name])
    if not is_outside(name):
        raise UsageError(f"there is no {what} called '{name}'", nearest(name, table))
    if _package(name) not in _trusted.union(map(_package, plugins())):
        raise UsageError(
            f"the {what} '{name}' is code from outside Elman, and only a file asks for it",
            f"if you trust it, set {PLUGINS_VARIABLE}={name}",
        )
    try:
        return imported(name)
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"the {what} '{name}' cannot be imported: {error}",
            "its module must be on Python's path; PYTHONPATH=FOLDER adds a folder",
        ) from error
    except (Exception, SystemExit) as error:  # code from outside may raise anything
        raise UsageError(
            f"the {what} '{name}' cannot be imported: {type(error).__name__}: {error}",
            "correct its module, or write its name as package.module:NAME",
        ) from error


def _package(name: str) -> str:
    return name.partition(":")[0].partition(".")[0]


def imported(part: str | T) -> T:
    """Import "package.module:attribute" or "package.module"; return any other object unchanged."""
    if not isinstance(part, str):
        return part
    module_name, _, attribute = part.partition(":")
    module: Any = import_module(module_name)
    return cast(T, getattr(module, attribute) if attribute else module)
