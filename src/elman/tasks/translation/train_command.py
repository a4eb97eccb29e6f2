"""`elman train translator`: from parallel text to a translator."""

from __future__ import annotations

from typing import Annotated

import typer

from elman.cli.train_command import Training, TrainingOptions, with_training_options
from elman.terminal.options import Embeddings


@with_training_options
def train_translator(
    data: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SOURCE TARGET]",
            help="Two text files, line n of one the translation of line n of the other, or the "
            "built-in kjv-asv, which is also taken where there are none.",
            show_default=False,
        ),
    ] = None,
    valid: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="SOURCE TARGET",
            help="Two files to validate on; else the end of the pairs is held out.",
        ),
    ] = None,
    test: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="SOURCE TARGET", help="Two files to judge the finished model on."),
    ] = None,
    embeddings: Embeddings = None,
    *,
    options: TrainingOptions,
) -> None:
    """Train a translator: an encoder and a decoder with attention."""
    options = options.setting("model.embeddings.path", embeddings)
    Training("translator", data, valid, test, options).run()
