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
    from elman.api import LM, convert, load, mix, train_lm, train_model, train_ngram
    from elman.tasks.classification.handle import Classifier
    from elman.tasks.tagging.handle import Tagger

# Threads of torch that wait for each other would look for 15 milliseconds before they sleep. Beside
# another busy program that keeps from its core the very thread that they wait for, and training
# takes many times as long. It is read when torch is loaded, which is later.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")

__version__ = "0.1.0"

__all__ = [
    "LM",
    "Classifier",
    "ElmanError",
    "Tagger",
    "UsageError",
    "__version__",
    "convert",
    "load",
    "mix",
    "train_lm",
    "train_model",
    "train_ngram",
]

_LATER = dict.fromkeys(
    ("LM", "convert", "load", "mix", "train_lm", "train_model", "train_ngram"), "elman.api"
) | {
    "Classifier": "elman.tasks.classification.handle",
    "Tagger": "elman.tasks.tagging.handle",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'elman' has no attribute '{name}'")
    return getattr(import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
