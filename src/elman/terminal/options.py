"""Arguments and options that several commands share, spelled and explained alike.

Groups of options are dataclasses: `option_parameters` turns their fields into the parameters that
typer reads off a command's signature.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, get_type_hints

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
Json = Annotated[bool, typer.Option("--json", help="Output JSON.")]
Label = Annotated[
    str | None,
    typer.Option(metavar="LABEL", help="What a model of `elman train conditional` is given."),
]

Valid = Annotated[
    list[str] | None,
    typer.Option(metavar="FILE", help="Data to validate on; else a part of DATA is held out."),
]
Test = Annotated[
    list[str] | None, typer.Option(metavar="FILE", help="Data to judge the finished model on.")
]
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
Seed = Annotated[int | None, typer.Option(metavar="N", help="Random seed.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue the run in --out where it was left.")
]


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """The options that every command has that trains a network."""

    recipe: Recipe = None
    out: Out = None
    minutes: Minutes = None
    epochs: Epochs = None
    steps: Steps = None
    settings: Settings = None
    device: Device = "auto"
    seed: Seed = None
    resume: Resume = False
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class CountedOptions:
    """The options that every command has that fits a model by counting."""

    out: Out = None
    settings: Settings = None
    json: Json = False

    def as_training(self) -> TrainingOptions:
        return TrainingOptions(out=self.out, settings=self.settings, json=self.json)


def option_parameters(group: type[Any]) -> list[Parameter]:
    """The fields of a dataclass of options as parameters of a command."""
    hints = get_type_hints(group, include_extras=True)
    return [
        Parameter(
            f.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if f.default is MISSING else f.default,
            annotation=hints[f.name],
        )
        for f in fields(group)
    ]
