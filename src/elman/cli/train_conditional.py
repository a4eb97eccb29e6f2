"""`elman train conditional`: from texts with labels to a language model that is given one."""

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
    valid: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Files to validate on; else a tenth is held out."),
    ] = None,
    test: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Files to judge the finished model on."),
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
    """Train a language model that is given a label: surnames of a language, say."""
    Training(
        task="conditional",
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
