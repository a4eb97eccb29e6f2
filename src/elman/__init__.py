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
from typing import TYPE_CHECKING, Any

from elman.base.errors import ElmanError, UsageError

if TYPE_CHECKING:
    from elman.api import LM, convert, load, mix, train_model

# OpenMP threads spin for 15 ms by default before they sleep. Beside another busy program they then
# take the core from the thread they wait for, and training slows down many times. The variable is
# read when torch is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")

__version__ = "0.1.0"

__all__ = [
    "LM",
    "ElmanError",
    "UsageError",
    "__version__",
    "convert",
    "load",
    "mix",
    "train_model",
]


def __getattr__(name: str) -> Any:
    if name in __all__ or name.startswith("train_"):  # train_NAME for each task
        return getattr(import_module("elman.api"), name)
    if name[:1].isupper():  # the handle class of a task, by its name
        from elman.tasks import all_tasks

        for task in all_tasks():
            if str(task.handle).rpartition(":")[2] == name:
                return task.part("handle")
    raise AttributeError(f"module 'elman' has no attribute '{name}'")


def __dir__() -> list[str]:
    from elman.tasks import TASKS

    return sorted([*__all__, *(f"train_{name}" for name in TASKS)])
