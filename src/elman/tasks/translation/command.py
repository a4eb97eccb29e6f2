"""`elman translate`: translate text line by line."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elman.base.config import describe
from elman.base.counting import counted
from elman.base.errors import UsageError
from elman.decode.options import DecodeConfig
from elman.terminal.console import result, result_json_list, talk
from elman.terminal.options import Json
from elman.terminal.stdin import read_lines

if TYPE_CHECKING:
    from elman.tasks.translation.handle import Translator

DEFAULT_BEAM = 5
PROSE = {setting.name: setting.prose for setting in describe(DecodeConfig)}


def translate(
    handle: Translator,
    file: Annotated[
        str, typer.Argument(metavar="[FILE|-]", help="A text, line by line; - reads stdin.")
    ] = "-",
    beam: Annotated[
        int | None,
        typer.Option(metavar="K", help=f"{PROSE['beam_size']} [default: {DEFAULT_BEAM}]"),
    ] = None,
    n_best: Annotated[
        int, typer.Option(metavar="N", help="Print this many translations of each line, as TSV.")
    ] = 1,
    length_penalty: Annotated[float, typer.Option(metavar="X", help=PROSE["length_penalty"])] = 1.0,
    coverage_penalty: Annotated[
        float, typer.Option(metavar="X", help=PROSE["coverage_penalty"])
    ] = 0.0,
    greedy: Annotated[bool, typer.Option("--greedy", help=PROSE["greedy"])] = False,
    temperature: Annotated[
        float | None,
        typer.Option(metavar="X", help="Sample translations at this temperature instead."),
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help=PROSE["seed"])] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="The longest translation. [default: twice the line and 16, at most 1,000]",
        ),
    ] = None,
    attention: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the attention of the decoder for the first line."),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Lines that are translated together. [default: 64; from stdin 1, so that each is "
            "answered at once]",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Translate a text line by line.

    One line out for each line in, in the same order, as soon as it is ready.
    """
    options = _options(beam, n_best, length_penalty, coverage_penalty, greedy, temperature, seed)
    lines = read_lines(file)
    if attention is not None:
        lines = _drawn(handle, lines, attention, options)
    size = batch_size or (1 if file == "-" else 64)
    found = handle.translations(lines, batch_size=size, max_tokens=max_tokens, **options)
    if json:
        result_json_list([vars(t) for t in translations] for translations in found)
        return
    for number, translations in enumerate(found, start=1):
        if any(t.finish_reason == "length" for t in translations):
            talk(f"line {number} was cut after {counted(translations[0].tokens, 'token')}")
        if n_best == 1:
            result(translations[0].text)
        for rank, t in enumerate(translations if n_best > 1 else (), start=1):
            result(f"{number}\t{rank}\t{t.score:.4f}\t{t.logprob:.4f}\t{t.text}")


def check_translate(
    *,
    beam: int | None,
    n_best: int,
    length_penalty: float,
    coverage_penalty: float,
    greedy: bool,
    temperature: float | None,
    seed: int | None,
    **_: object,
) -> None:
    """Check the options of decoding before the model is opened."""
    from elman.tasks.conditioned import conditional_options

    conditional_options(
        _options(beam, n_best, length_penalty, coverage_penalty, greedy, temperature, seed)
    )


def _options(
    beam: int | None,
    n_best: int,
    length_penalty: float,
    coverage_penalty: float,
    greedy: bool,
    temperature: float | None,
    seed: int | None,
) -> dict[str, Any]:
    """The fields of `DecodeConfig`."""
    options: dict[str, Any] = {"num_samples": n_best, "seed": seed}
    if beam is not None and (greedy or temperature is not None):
        raise UsageError(
            "beam search does not sample", "drop --beam, or --greedy and --temperature"
        )
    if greedy and temperature is not None:
        raise UsageError("--greedy does not sample", "drop --greedy or --temperature")
    if greedy or temperature is not None:
        return options | {"greedy": greedy, "temperature": 1.0 if greedy else temperature}
    return options | {
        "beam_size": max(DEFAULT_BEAM if beam is None else beam, n_best),
        "length_penalty": length_penalty,
        "coverage_penalty": coverage_penalty,
    }


def _drawn(
    translator: Translator, lines: Iterator[str], path: Path, options: dict[str, Any]
) -> Iterator[str]:
    """Draw the attention for the first line that is not blank; return all lines."""
    before = []
    for line in lines:
        before.append(line)
        if line.strip():
            translator.draw_alignment(line, path, **{**options, "num_samples": 1})
            talk(f"drawn: {path}, line {len(before)}")
            break
    return chain(before, lines)
