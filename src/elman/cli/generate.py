"""`elman generate`: continue a text."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from elman.base.config import describe
from elman.base.errors import UsageError
from elman.decode.options import DecodeConfig
from elman.terminal.console import result, result_json, talk, talk_notes
from elman.terminal.options import Device, Json, Label, Model, Quantise
from elman.terminal.stdin import read_stdin

DEFAULTS = DecodeConfig()
PROSE = {setting.name: setting.prose for setting in describe(DecodeConfig)}


def setting(name: str, *flags: str, metavar: str = "N") -> Any:
    """The option for one field of `DecodeConfig`, explained by the field's own prose."""
    return typer.Option(*flags, metavar=metavar, help=PROSE[name])


def generate(
    model: Model,
    prompt: Annotated[
        str,
        typer.Argument(
            metavar="[PROMPT|-]",
            help="The text to continue; - reads it from stdin.",
            show_default=False,
        ),
    ] = "",
    max_tokens: Annotated[int, setting("max_tokens")] = DEFAULTS.max_tokens,
    temperature: Annotated[float, setting("temperature", metavar="X")] = DEFAULTS.temperature,
    top_k: Annotated[int, setting("top_k")] = DEFAULTS.top_k,
    top_p: Annotated[float, setting("top_p", metavar="X")] = DEFAULTS.top_p,
    min_p: Annotated[float, setting("min_p", metavar="X")] = DEFAULTS.min_p,
    greedy: Annotated[bool, setting("greedy", "--greedy")] = DEFAULTS.greedy,
    beam: Annotated[int, setting("beam_size", "--beam", metavar="K")] = DEFAULTS.beam_size,
    length_penalty: Annotated[
        float, setting("length_penalty", metavar="X")
    ] = DEFAULTS.length_penalty,
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="S", help="End before this text appears; may be repeated."),
    ] = None,
    frequency_penalty: Annotated[
        float, setting("frequency_penalty", metavar="X")
    ] = DEFAULTS.frequency_penalty,
    presence_penalty: Annotated[
        float, setting("presence_penalty", metavar="X")
    ] = DEFAULTS.presence_penalty,
    num_samples: Annotated[int, setting("num_samples")] = DEFAULTS.num_samples,
    seed: Annotated[int | None, setting("seed")] = DEFAULTS.seed,
    echo: Annotated[
        bool, typer.Option("--echo", help="Print the prompt before each continuation.")
    ] = False,
    quantise: Quantise = None,
    label: Label = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Continue a text.

    By sampling, greedily or by beam search. The continuation appears as it is made; several
    samples follow one another, with their figures on stderr.
    """
    from elman.api import LM, load

    text = read_stdin() if prompt == "-" else prompt
    stops = [unescape(s) for s in stop or ()]
    settings: dict[str, Any] = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "greedy": greedy,
        "beam_size": beam,
        "length_penalty": length_penalty,
        "frequency_penalty": frequency_penalty,
        "presence_penalty": presence_penalty,
        "num_samples": num_samples,
        "seed": seed,
    }
    drawing = ("temperature", "top_k", "top_p", "min_p")
    if greedy and (asked := [n for n in drawing if settings[n] != getattr(DEFAULTS, n)]):
        raise UsageError(
            "--greedy draws nothing", f"drop --greedy or --{asked[0].replace('_', '-')}"
        )
    DecodeConfig(**settings)  # a wrong setting is told before a large model is read
    lm = load(model, device=device, kind=LM, label=label, quantise=quantise)
    talk_notes(lm.notes)
    beginning = text if echo else ""
    if json:
        completions = lm.complete(text, stop=stops, **settings)
        result_json([{**vars(c), "text": beginning + c.text} for c in completions])
    elif num_samples == 1 and beam == 1:
        sys.stdout.write(beginning)
        for piece in lm.generate(text, stop=stops, stream=True, **settings):
            sys.stdout.write(piece)
            sys.stdout.flush()
        result("")
    else:
        for number, completion in enumerate(lm.complete(text, stop=stops, **settings), start=1):
            figures = f"{completion.finish_reason}, log probability {completion.logprob:.2f}"
            talk(f"--- {number}: {figures}")
            result(beginning + completion.text)


def unescape(text: str) -> str:
    r"""`\n`, `\t` and `\\` as the characters they name: shells make it hard to type them."""
    return text.replace("\\\\", "\0").replace("\\n", "\n").replace("\\t", "\t").replace("\0", "\\")
