"""`elman train captioner`: from pictures and sentences to a captioner."""

from __future__ import annotations

from typing import Annotated

import typer

from elman.base.errors import UsageError
from elman.cli.train_command import Training, TrainingOptions, with_training_options
from elman.terminal.options import NoEmbeddings, Test, Valid


@with_training_options
def train_captioner(
    data: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TABLE",
            help="A TSV with columns image and sentence; the pictures lie beside it, in a folder "
            "or a zip archive called images or <table>_images.",
            show_default=False,
        ),
    ] = None,
    valid: Valid = None,
    test: Test = None,
    embeddings: NoEmbeddings = None,
    *,
    options: TrainingOptions,
) -> None:
    """Train a captioner: a convolutional network and a decoder with attention."""
    if embeddings is not None:
        raise UsageError(
            "a captioner reads pictures: it has no words that word vectors could stand beside",
            "leave --embeddings out",
        )
    Training("captioner", data, valid, test, options).run()
