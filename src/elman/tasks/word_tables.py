"""The vectors of words at the input of a model, which do not depend on the context.

A table is a list of tokens and their vectors (V, E). A model has one, or one for each side; tasks
with other models than these have a function of their own (`Task.word_vectors`).
"""

from __future__ import annotations

from typing import Any

from elman.base.errors import UsageError
from elman.base.tables import imported
from elman.models.interface import reading
from elman.tasks import task_named
from elman.tasks.opening import OpenedRun
from elman.tasks.task import WordTable

WORDS = "words"
"""The name of the only table of a model."""


def word_table(run: OpenedRun, side: str | None = None) -> WordTable:
    """Return a table of an opened run: that of `side`, or the first."""
    declared = task_named(run.config.task).word_vectors
    if declared is None:
        raise UsageError(
            f"{run.path} has no word vectors", "name the run folder of another neural model"
        )
    with reading(run.model):
        tables = imported(declared)(run.model, run.tokenizer)
    if not tables:
        raise UsageError(
            f"{run.path} has no word vectors: it reads letters or counts n-grams",
            "name the run folder of another neural model, or one with model.embedding_size above 0",
        )
    if side is not None and side not in tables:
        raise UsageError(
            f"{run.path} has no vectors of the {side}",
            f"it has those of the {' and the '.join(tables)}"
            if len(tables) > 1
            else "drop the side: it has one table of words",
        )
    words, vectors_VE = tables[side or next(iter(tables))]
    return words, vectors_VE.detach()


def of_input(model: Any, vocabulary: Any) -> dict[str, WordTable]:
    """The table of a model with an input layer `input`; none of a model without one."""
    if not hasattr(model, "input"):  # elman train lm --set model.kind=maxent
        return {}
    tokenizer = getattr(vocabulary, "tokenizer", vocabulary)
    return {WORDS: (tokenizer.spellings(), model.input.all_types())}


def of_decoder(model: Any, tokenizer: Any) -> dict[str, WordTable]:
    """The table of the words that a decoder reads."""
    return {WORDS: (tokenizer.spellings(), model.decoder.input.all_types())}
