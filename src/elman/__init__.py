"""Elman: from a text file to a language model that is trained, measured, explained and used.

    import elman

    lm = elman.train_lm("my.txt", minutes=5)
    lm = elman.load("runs/mine")
    lm.perplexity("The cat sat on the mat.")

Importing this module is quick: what needs torch is imported when it is first asked for (PEP 562).
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from elman.base.errors import ElmanError, UsageError

if TYPE_CHECKING:
    from elman.api import LM, convert, load, mix, train_model

# Threads of torch that wait for each other would look for 15 milliseconds before they sleep. Beside
# another busy program that keeps from its core the very thread that they wait for, and training
# takes many times as long. It is read when torch is loaded, which is later.
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

_LATER = ("LM", "convert", "load", "mix", "train_model")


def __getattr__(name: str) -> Any:
    if name in _LATER or name.startswith("train_"):  # train_NAME for each task
        return getattr(import_module("elman.api"), name)
    if name[:1].isupper():  # the handle class of a task, by its name
        from elman.tasks import all_tasks

        for task in all_tasks():
            if str(task.handle).rpartition(":")[2] == name:
                return task.part("handle")
    raise AttributeError(f"module 'elman' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
