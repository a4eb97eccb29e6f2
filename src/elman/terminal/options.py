"""Arguments and options that several commands share, and options made from dataclass fields.

Groups of options are dataclasses: `option_parameters` turns fields that are annotated with typer's
options into the parameters of a command; `with_options` makes options from any config's fields.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from elman.base.config import describe

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


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What a command says about an option instead of what its field says."""

    flag: str | None = None
    help: str | None = None
    default: str | None = None
    """In words; the empty string shows none."""


def with_options(
    config: type[Any], *names: str, defaults: Any = None, **shown: Shown
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each of these fields of the dataclass `config`.

    The command receives those that were given, by field name, as its argument `options`. Flag and
    value name come from the field's metadata, the help from its prose, and the default that is
    shown from `defaults`, a `config`.
    """
    parameters = _options(config, names, defaults or config(), shown)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        return place_options(
            command,
            parameters,
            lambda values: {name: value for name, value in values.items() if value is not None},
        )

    return decorate


def place_options(
    command: Callable[..., None],
    parameters: Sequence[Parameter],
    gather: Callable[[dict[str, Any]], object],
) -> Callable[..., None]:
    """Put `parameters` in the place of the command's argument `options`, which is then called with
    what `gather` makes of their values. typer reads a command's options off its signature."""

    @wraps(command)
    def run(**given: Any) -> None:
        values = {parameter.name: given.pop(parameter.name) for parameter in parameters}
        command(**given, options=gather(values))

    own = evaluated_signature(command)
    placed: list[Parameter] = []
    for name, parameter in own.parameters.items():
        mine = [parameter.replace(kind=Parameter.KEYWORD_ONLY)]
        placed += parameters if name == "options" else mine
    run.__signature__ = own.replace(parameters=placed)  # type: ignore[attr-defined]
    return run


def evaluated_signature(command: Callable[..., None]) -> Signature:
    """The signature with evaluated annotations. That of the first parameter, a handle, may be
    imported for type checkers alone."""
    first = next(iter(signature(command).parameters.values()))
    known = getattr(command, "__globals__", {})
    unknown = {} if first.annotation in known else {str(first.annotation): Any}
    return signature(command, eval_str=True, locals=unknown)


def _options(
    config: type[Any], names: Sequence[str], defaults: Any, shown: dict[str, Shown]
) -> list[Parameter]:
    hints, known = get_type_hints(config), {f.name: f for f in fields(config)}
    prose = {setting.name: " ".join(setting.prose.split()) for setting in describe(config)}
    parameters = []
    for name in names:
        metadata, mine = known[name].metadata, shown.get(name, Shown())
        flag = mine.flag or metadata.get("flag") or f"--{name.replace('_', '-')}"
        default = getattr(defaults, name)
        words = "" if default is None or default is False else str(default)
        words = words if mine.default is None else mine.default
        text = (mine.help or prose[name]) + (f" [default: {words}]" if words else "")
        option = typer.Option(None, flag, metavar=metadata.get("metavar"), help=text)
        optional = hints[name] | None
        parameters.append(
            Parameter(name, Parameter.KEYWORD_ONLY, default=option, annotation=optional)
        )
    return parameters
