"""`elman train captioner`: from pictures and sentences to a captioner."""

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
    valid: Annotated[
        list[str] | None,
        typer.Option(metavar="TABLE", help="A table to validate on; else the end is held out."),
    ] = None,
    test: Annotated[
        list[str] | None,
        typer.Option(metavar="TABLE", help="A table to judge the finished model on."),
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
    """Train a captioner: a convolutional network and a decoder with attention."""
    Training(
        task="captioner",
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
