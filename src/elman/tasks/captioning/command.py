"""`elman caption`: sentences about pictures."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from elman.cli.generate import setting
from elman.terminal.console import result, result_json_list
from elman.terminal.options import Device, Json


def caption(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A captioner's run folder.", show_default=False)
    ],
    images: Annotated[
        list[str], typer.Argument(metavar="IMAGE...", help="Picture files.", show_default=False)
    ],
    beam: Annotated[int, setting("beam_size", "--beam", metavar="K")] = 5,
    n_best: Annotated[
        int, typer.Option(metavar="N", help="Print so many sentences about each picture.")
    ] = 1,
    temperature: Annotated[
        float | None,
        typer.Option(metavar="X", help="Draw sentences instead, at this temperature."),
    ] = None,
    seed: Annotated[int | None, setting("seed")] = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Say what is in pictures: file, tab, sentence."""
    from elman.api import load
    from elman.tasks.captioning.handle import Captioner

    settings: dict[str, Any] = {"num_samples": n_best, "seed": seed}
    if temperature is None:
        settings |= {"beam_size": max(beam, n_best)}
    else:
        settings |= {"temperature": temperature}
    found = load(model, device=device, kind=Captioner).captions(images, **settings)
    if json:
        result_json_list(
            {"image": image, "captions": [vars(each) for each in captions]}
            for image, captions in zip(images, found, strict=True)
        )
        return
    for image, captions in zip(images, found, strict=True):
        for each in captions:
            result(f"{image}\t{each.text}")
