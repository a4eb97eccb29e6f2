"""`elman caption`: sentences about pictures."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from elman.base.errors import UsageError
from elman.decode.options import CONDITIONAL, DecodeOptions, conditional_options, draws
from elman.terminal.console import result, result_json_list
from elman.terminal.options import Device, Json, Shown, with_options


@with_options(
    DecodeOptions,
    "beam_size",
    "num_samples",
    "temperature",
    "seed",
    defaults=CONDITIONAL,
    num_samples=Shown(flag="--n-best", help="Print this many sentences about each picture."),
    temperature=Shown(help="Draw sentences at this temperature instead.", default=""),
)
def caption(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A captioner's run folder.", show_default=False)
    ],
    images: Annotated[
        list[str], typer.Argument(metavar="IMAGE...", help="Picture files.", show_default=False)
    ],
    *,
    options: dict[str, Any],
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Say what is in pictures: file, tab, sentence."""
    from elman.api import load
    from elman.tasks.captioning.handle import Captioner

    if "seed" in options and not draws(options):
        raise UsageError("--seed has no effect on beam search", "add --temperature 1, or drop it")
    conditional_options(options)  # report a wrong option before reading a large model
    found = load(model, device=device, kind=Captioner).captions(images, **options)
    if json:
        result_json_list(
            {"image": image, "captions": [vars(each) for each in captions]}
            for image, captions in zip(images, found, strict=True)
        )
        return
    for image, captions in zip(images, found, strict=True):
        for each in captions:
            result(f"{image}\t{each.text}")
