"""`elman train tagger`: from tagged sentences to a tagger."""

from __future__ import annotations

from typing import Annotated

import typer

from elman.cli.options import (
    Device,
    Epochs,
    Json,
    Minutes,
    Out,
    Recipe,
    Resume,
    Seed,
    Settings,
    Steps,
    Test,
    Valid,
)
from elman.cli.training import Training


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
    valid: Valid = None,
    test: Test = None,
    recipe: Recipe = None,
    out: Out = None,
    minutes: Minutes = None,
    epochs: Epochs = None,
    steps: Steps = None,
    settings: Settings = None,
    device: Device = "auto",
    seed: Seed = None,
    resume: Resume = False,
    json: Json = False,
) -> None:
    """Train, and print where the tagger is and how good it is."""
    Training(
        task="tagger",
        data=data or (),
        valid=valid or (),
        test=test or (),
        recipe=recipe,
        out=out,
        length={"minutes": minutes, "epochs": epochs, "steps": steps},
        settings=[*(settings or ()), *([] if column is None else [f'data.column="{column}"'])],
        device=device,
        seed=seed,
        resume=resume,
    ).run(json)
