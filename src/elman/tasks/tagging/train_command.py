"""`elman train tagger`: from tagged sentences to a tagger."""

from __future__ import annotations

from typing import Annotated

import typer

from elman.cli.train_command import Training, TrainingOptions, with_training_options
from elman.terminal.options import Embeddings, Test, Valid


@with_training_options
def train_tagger(
    data: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="DATA...",
            help="CoNLL-U or column files (CoNLL-2003, WNUT), also .gz and .zst.",
            show_default=False,
        ),
    ] = None,
    column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|N",
            help="The column with the tags: upos, xpos and so on of CoNLL-U, or a number from 1. "
            "[default: upos, or the last]",
        ),
    ] = None,
    embeddings: Embeddings = None,
    valid: Valid = None,
    test: Test = None,
    *,
    options: TrainingOptions,
) -> None:
    """Train, and print where the tagger is and how good it is."""
    options = options.setting("data.column", column).setting("model.embeddings.path", embeddings)
    Training("tagger", data, valid, test, options).run()
