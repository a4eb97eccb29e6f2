"""`elman caption`: describe pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from elman.base.config import describe
from elman.decode.options import DecodeConfig
from elman.terminal.console import result, result_json_list
from elman.terminal.options import Json

if TYPE_CHECKING:
    from elman.tasks.captioning.handle import Captioner

PROSE = {setting.name: setting.prose for setting in describe(DecodeConfig)}


def caption(
    handle: Captioner,
    images: Annotated[
        list[str], typer.Argument(metavar="IMAGE...", help="Picture files.", show_default=False)
    ],
    beam: Annotated[int, typer.Option("--beam", metavar="K", help=PROSE["beam_size"])] = 5,
    n_best: Annotated[
        int, typer.Option(metavar="N", help="Print this many sentences about each picture.")
    ] = 1,
    temperature: Annotated[
        float | None,
        typer.Option(metavar="X", help="Sample sentences at this temperature instead."),
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help=PROSE["seed"])] = None,
    json: Json = False,
) -> None:
    """Describe pictures: file, tab, sentence."""
    found = handle.captions(images, **_options(beam, n_best, temperature, seed))
    if json:
        result_json_list(
            {"image": image, "captions": [vars(each) for each in captions]}
            for image, captions in zip(images, found, strict=True)
        )
        return
    for image, captions in zip(images, found, strict=True):
        for each in captions:
            result(f"{image}\t{each.text}")


def check_caption(
    *, beam: int, n_best: int, temperature: float | None, seed: int | None, **_: object
) -> None:
    """Check the options of decoding before the model is opened."""
    from elman.tasks.conditioned import conditional_options

    conditional_options(_options(beam, n_best, temperature, seed))


def _options(beam: int, n_best: int, temperature: float | None, seed: int | None) -> dict[str, Any]:
    """The fields of `DecodeConfig`."""
    options: dict[str, Any] = {"num_samples": n_best, "seed": seed}
    if temperature is None:
        return options | {"beam_size": max(beam, n_best)}
    return options | {"temperature": temperature}
