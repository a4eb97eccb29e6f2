"""Elman: train, measure, explain and use recurrent language models.

    import elman

    lm = elman.train_lm("my.txt", minutes=5)
    lm = elman.load("runs/mine")
    lm.perplexity("The cat sat on the mat.")

Importing this module is fast: everything else is imported at first use (PEP 562).
"""

from __future__ import annotations

import os as _os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# OpenMP threads spin for 15 ms by default before they sleep. Beside another busy program they then
# take the core from the thread they wait for, and training slows down many times. The variable is
# read when torch is loaded.
_os.environ.setdefault("GOMP_SPINCOUNT", "2000")

__version__ = "0.1.0"

_ERRORS = ("ElmanError", "UsageError")
_API = ("convert", "load", "mix", "quality", "train_model")


def _of_tasks() -> dict[str, str]:
    """`train_NAME` and the handle of each task, and where they are. Imports all declarations."""
    from elman.tasks import built_in_tasks

    tasks = list(built_in_tasks())
    trainers = {f"train_{task.name}": f"elman.api:train_{task.name}" for task in tasks}
    return trainers | {str(task.handle).rpartition(":")[2]: str(task.handle) for task in tasks}


def __getattr__(name: str) -> Any:
    if name == "__all__":  # __init__.pyi tells type checkers the same
        return [*_ERRORS, "__version__", *_API, *_of_tasks()]
    places = {error: f"elman.base.errors:{error}" for error in _ERRORS}
    places |= {function: f"elman.api:{function}" for function in _API}
    # `from elman import recipes` asks for the names of modules too.
    if name not in places and (name[:1].isupper() or name.startswith("train_")):
        places = _of_tasks()
    if name in places:
        from elman.base.tables import imported

        return imported(places[name])
    raise AttributeError(f"module 'elman' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__getattr__("__all__"))
