"""Elman: train, measure, explain and use recurrent language models.

    import elman

    lm = elman.train_lm("my.txt", minutes=5)
    lm = elman.load("runs/mine")
    lm.perplexity("The cat sat on the mat.")

Importing this module is fast: whatever needs torch is imported at first use (PEP 562).
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from elman.base.errors import ElmanError, UsageError
from elman.base.tables import imported
from elman.tasks import TASKS, task_named

# OpenMP threads spin for 15 ms by default before they sleep. Beside another busy program they then
# take the core from the thread they wait for, and training slows down many times. The variable is
# read when torch is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")

__version__ = "0.1.0"

_HANDLES = {str(task.handle).rpartition(":")[2]: task for task in map(task_named, TASKS)}

__all__ = [  # __init__.pyi tells type checkers the same
    "ElmanError",
    "UsageError",
    "__version__",
    "convert",
    "load",
    "mix",
    "train_model",
    *_HANDLES,
    *(f"train_{name}" for name in TASKS),
]


def __getattr__(name: str) -> Any:
    if name in _HANDLES:
        return imported(_HANDLES[name].handle)
    if name in __all__:
        return getattr(import_module("elman.api"), name)
    raise AttributeError(f"module 'elman' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
