"""`elman train conditional`: from texts with labels to a language model that is given one."""

from __future__ import annotations

from typing import Annotated

import typer

from elman.base.errors import UsageError
from elman.cli.train_command import Training, TrainingOptions, with_training_options
from elman.terminal.options import NoEmbeddings, Test, Valid


@with_training_options
def train_conditional(
    data: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILES...]",
            help="Text files, one text a line, each named for its label; or a folder of them, or a "
            "built-in name; none: surnames.",
            show_default=False,
        ),
    ] = None,
    valid: Valid = None,
    test: Test = None,
    embeddings: NoEmbeddings = None,
    *,
    options: TrainingOptions,
) -> None:
    """Train a language model that is given a label: surnames of a language, say."""
    if embeddings is not None:
        raise UsageError(
            "a conditional model predicts its own words: vectors that know the words around them "
            "would tell it the answer",
            "leave --embeddings out; `elman train classifier` reads them",
        )
    Training("conditional", data, valid, test, options).run()
