"""`elman train translator`: from parallel text to a translator."""

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
)
from elman.cli.training import Training


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
    """Train a translator: an encoder and a decoder with attention."""
    Training(
        task="translator",
        data=data or (),
        valid=valid or (),
        test=test or (),
        recipe=recipe,
        out=out,
        length={"minutes": minutes, "epochs": epochs, "steps": steps},
        settings=settings or (),
        device=device,
        seed=seed,
        resume=resume,
    ).run(json)
