"""Arguments and options that several commands share, and options made from dataclass fields.

Groups of options are dataclasses: `option_parameters` turns fields annotated with typer's options
into the parameters of a command; `with_options` makes options from any config's fields.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from elman.base.config import describe
from elman.base.errors import UsageError
from elman.base.tables import imported
from elman.base.threads import set_threads, usable_cores
from elman.decode.options import conditional_options, draws
from elman.terminal.console import talk_notes
from elman.text.line_limit import LONGEST_LINE, set_longest_line


def argument(metavar: str, help: str) -> Any:
    """A positional argument; its default is not shown."""
    return typer.Argument(metavar=metavar, help=help, show_default=False)


def option(metavar: str | None, help: str, *flags: str, **details: Any) -> Any:
    """An option; its flag is the parameter's name unless `flags` are given.

    The shell completes the values of a `metavar` such as auto|cpu|cuda.
    """
    if re.fullmatch(r"[a-z0-9-]+(\|[a-z0-9-]+)+", metavar or ""):
        details["autocompletion"] = one_of(str(metavar).split("|"))
    return typer.Option(*flags, metavar=metavar, help=help, **details)


def picture(help: str) -> Any:
    """An option for the file of a picture, whose suffix is checked at once."""
    return option("FILE", f"{help.removesuffix('.')} (.png, .svg, .pdf).", callback=_check_picture)


def _check_picture(path: Path | str | None) -> Path | str | None:
    from elman.evaluate.pictures import check_suffix

    if path is not None:
        check_suffix(Path(path))
    return path


def one_of(values: Iterable[str]) -> Callable[[str], list[str]]:
    """A completion of what was typed to one of these values."""

    def complete(incomplete: str) -> list[str]:
        return [value for value in values if value.startswith(incomplete)]

    return complete


def _recipes(incomplete: str) -> list[str]:
    return one_of(imported("elman.recipes:names")())(incomplete)


Model = Annotated[
    str,
    argument("MODEL", "A run folder, an ARPA file, or a mixture such as 0.7*runs/a+0.3*runs/b."),
]
Device = Annotated[str, option("auto|cpu|cuda", "Where to compute.")]


def threads_here(context: typer.Context, number: int | None) -> int | None:
    """Limit a number of threads to that of the cores, and say so.

    More threads wait for each other: 1,000 on two cores took 46 s for what two do in 0.4 s.
    """
    cores = usable_cores()
    if number is None or number <= cores or context.resilient_parsing:
        return number
    talk_notes([f"--threads {number}: using {cores}, as there {_cores(cores)} here"])
    return cores


def _cores(number: int) -> str:
    return "is 1 core" if number == 1 else f"are {number:,} cores"


def _set_threads(context: typer.Context, number: int | None) -> int | None:
    return set_threads(threads_here(context, number))


Threads = Annotated[
    int | None, option("N", "Threads. [default: automatic]", min=1, callback=_set_threads)
]
"""For commands that compute; parsing it sets the number."""
Quantise = Annotated[
    str | None, option("int8", "Round the weights to one byte each: faster on a CPU, less exact.")
]
Json = Annotated[bool, option(None, "Output JSON.", "--json")]
Label = Annotated[str | None, option("LABEL", "The label, for a language model that takes one.")]
AsIs = Annotated[
    bool, option(None, "Do not lower-case or tokenise the text as in training.", "--as-is")
]

Adapt = Annotated[
    bool,
    option(None, "Keep training while reading (dynamic evaluation).", "--adapt", "--dynamic"),
]
Cache = Annotated[bool, option(None, "Mix in the words that followed similar contexts.", "--cache")]
Temperature = Annotated[
    float | None,
    option("T", "Softmax temperature of networks (Melis and others, 2018); 1 is as trained."),
]
Samples = Annotated[
    int | None,
    option("N", "Networks: the mean over N dropout masks (Gal and Ghahramani, 2016).", min=1),
]
DropoutScale = Annotated[
    float | None,
    option("X", "Multiply rates of dropout by X for --samples. [default: 1, or by --tune]"),
]
Tune = Annotated[
    list[str] | None,
    option(
        "FILE",
        "Find --temperature and --dropout-scale, or settings of --adapt and --cache, on this.",
    ),
]
AdaptSettings = Annotated[
    list[str] | None,
    option("KEY=VALUE", "A setting of adapt. or cache.; may be repeated.", "--set"),
]

Valid = Annotated[
    list[str] | None, option("FILE", "Validation data; else a part of DATA is held out.")
]
Test = Annotated[list[str] | None, option("FILE", "Test data for the finished model.")]
Recipe = Annotated[
    str | None,
    option(
        "NAME|FILE",
        "A built-in recipe or a TOML file; else automatic choices.",
        autocompletion=_recipes,
    ),
]
Out = Annotated[Path | None, option("DIR", "The run folder. [default: a new one under runs/]")]
Minutes = Annotated[float | None, option("M", "Length of the run in minutes.")]
Epochs = Annotated[int | None, option("N", "Length of the run in passes over the text.")]
Steps = Annotated[int | None, option("N", "Length of the run in updates.")]
Settings = Annotated[
    list[str] | None, option("KEY=VALUE", "Change one setting; may be repeated.", "--set")
]
Seed = Annotated[int | None, option("N", "Random seed.")]
Resume = Annotated[bool, option(None, "Continue the run in --out.", "--resume")]
Overwrite = Annotated[bool, option(None, "Replace the run in --out.", "--overwrite")]
Encoding = Annotated[
    str | None, option("NAME", "Encoding of the text files, such as latin-1. [default: utf-8]")
]
Column = Annotated[
    str | None, option("NAME", "The column of tables with the text. [default: text]")
]
TrustData = Annotated[
    bool,
    option(
        None,
        "With --resume of a run from elsewhere: read any file that it names, and follow links.",
        "--trust-data",
    ),
]
Track = Annotated[
    list[str] | None,
    option("wandb|mlflow|tensorboard", "Send the reports to this tracker; may be repeated."),
]
MaxLine = Annotated[
    int | None,
    option(
        "BYTES",
        f"Refuse longer lines. [default: {LONGEST_LINE}]",
        min=1,
        callback=set_longest_line,
    ),
]
"""For commands that read whole lines; parsing it sets the limit."""


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """Options of every command that trains a network."""

    recipe: Recipe = None
    out: Out = None
    minutes: Minutes = None
    epochs: Epochs = None
    steps: Steps = None
    settings: Settings = None
    device: Device = "auto"
    threads: Threads = None
    seed: Seed = None
    resume: Resume = False
    overwrite: Overwrite = False
    encoding: Encoding = None
    trust_data: TrustData = False
    max_line: MaxLine = None
    track: Track = None
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class CountedOptions:
    """Options of every command that fits a model by counting."""

    out: Out = None
    overwrite: Overwrite = False
    encoding: Encoding = None
    settings: Settings = None
    threads: Threads = None
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class ResumedOptions(CountedOptions):
    """Options of those that can continue."""

    resume: Resume = False
    trust_data: TrustData = False


def option_parameters(group: type[Any]) -> list[Parameter]:
    """Turn the fields of a dataclass of options, which have defaults, into parameters."""
    hints = get_type_hints(group, include_extras=True)
    return [parameter(f.name, hints[f.name], f.default) for f in fields(group)]


def parameter(name: str, annotation: Any, default: Any = None) -> Parameter:
    """A parameter of a command made from a declaration."""
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What a command shows for an option instead of the field's flag, help and default."""

    flag: str | None = None
    help: str | None = None
    default: str | None = None
    """In words; the empty string shows none."""


def with_options(
    config: type[Any], *names: str, defaults: Any = None, **shown: Shown
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each of these fields of the dataclass `config`.

    They come before the command's own keyword-only options. Its argument `options` receives those
    that were given, by field name. A command with `**options` is called directly and receives all
    of them, None if not given. Flag, value name and minimum come from the field's metadata, the
    help from its prose, and the default that is shown from `defaults`, a `config`.
    """
    hints, known = get_type_hints(config), {f.name: f for f in fields(config)}
    prose = {setting.name: " ".join(setting.prose.split()) for setting in describe(config)}
    parameters = []
    for name in names:
        metadata, mine = known[name].metadata, shown.get(name, Shown())
        flag = mine.flag or metadata.get("flag") or f"--{name.replace('_', '-')}"
        default = getattr(defaults or config(), name)
        words = "" if default is None or default is False else str(default)
        words = words if mine.default is None else mine.default
        text = (mine.help or prose[name]) + (f" [default: {words}]" if words else "")
        made = option(metadata.get("metavar"), text, flag, min=metadata.get("min"))
        parameters.append(parameter(name, Annotated[hints[name] | None, made]))

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**given: Any) -> None:
            values = {name: given.pop(name) for name in names}
            command(**given, options={k: v for k, v in values.items() if v is not None})

        own = evaluated_signature(command).parameters.values()
        before = [one for one in own if one.kind is one.POSITIONAL_OR_KEYWORD]
        after = [one for one in own if one.kind is one.KEYWORD_ONLY and one.name != "options"]
        placed = [one.replace(kind=one.KEYWORD_ONLY) for one in (*before, *parameters, *after)]
        takes_all = any(one.kind is one.VAR_KEYWORD and one.name == "options" for one in own)
        made: Callable[..., None] = command if takes_all else run
        # typer reads a command's options from its signature.
        made.__signature__ = Signature(placed)  # type: ignore[attr-defined]
        return made

    return decorate


def check_conditional(*, options: dict[str, Any], **_: object) -> None:
    """Check the decoding options of a command for conditional models before a model is opened."""
    if "seed" in options and not draws(options):
        raise UsageError("--seed has no effect on beam search", "add --temperature 1, or drop it")
    conditional_options(options)


def evaluated_signature(command: Callable[..., None]) -> Signature:
    """The signature with evaluated annotations. The class of the first parameter, a handle or a
    list of them, may be imported for type checkers alone."""
    first = next(iter(signature(command).parameters.values()))
    known = getattr(command, "__globals__", {})
    name = str(first.annotation).removeprefix("list[").removesuffix("]")
    unknown = {} if name in known else {name: Any}
    return signature(command, eval_str=True, locals=unknown)
