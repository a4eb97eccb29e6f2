"""Arguments and options that several commands share, spelled and explained alike."""

from __future__ import annotations

from typing import Annotated

import typer

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A run folder, an ARPA file, or several runs joined as 0.7*runs/a+0.3*runs/b.",
        show_default=False,
    ),
]
Device = Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="Where to compute.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text for people.")]
