"""Arguments and options that several commands share, spelled and explained alike."""

from __future__ import annotations

from pathlib import Path
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
Quantise = Annotated[
    str | None,
    typer.Option(
        metavar="int8", help="Round the weights to one byte each: faster on a CPU, less exact."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text for people.")]
Label = Annotated[
    str | None,
    typer.Option(metavar="LABEL", help="What a model of `elman train conditional` is given."),
]

Texts = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[DATA...]",
        help="Text files (also .gz, .zst), folders, or built-in names; none: python-docs.",
        show_default=False,
    ),
]
Valid = Annotated[
    list[str] | None,
    typer.Option(metavar="FILE", help="Data to validate on; else a part of DATA is held out."),
]
Test = Annotated[
    list[str] | None, typer.Option(metavar="FILE", help="Data to judge the finished model on.")
]
Measured = Annotated[
    list[str] | None, typer.Option(metavar="FILE", help="Text to measure the model on.")
]
"""Of models that are counted: nothing is held out, and nothing decided by it."""
MeasuredToo = Annotated[
    list[str] | None, typer.Option(metavar="FILE", help="More text to measure it on.")
]
Order = Annotated[
    int | None, typer.Option(metavar="N", help="Length of the longest n-grams. [default: 5]")
]
Embeddings = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL|FILE",
        help="Pre-trained vectors beside the model's own: a run folder (elmo, lm), published ELMo "
        "weights, or a file of word vectors.",
    ),
]
NoEmbeddings = Annotated[str | None, typer.Option("--embeddings", hidden=True)]
"""For commands that have no use for them, and say why."""
Recipe = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE", help="A built-in recipe or a TOML file; else automatic choices."
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="The run folder. [default: a new one under runs/]"),
]
Minutes = Annotated[float | None, typer.Option(metavar="M", help="Length of the run in minutes.")]
Epochs = Annotated[
    int | None, typer.Option(metavar="N", help="Length of the run in passes over the text.")
]
Steps = Annotated[int | None, typer.Option(metavar="N", help="Length of the run in updates.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one setting; may be repeated."),
]
Seed = Annotated[int | None, typer.Option(metavar="N", help="Where every random number begins.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue the run in --out where it was left.")
]
