"""`elman translate`: lines of one language to another."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from elman.base.counting import counted
from elman.base.errors import UsageError
from elman.cli.generate import PROSE, setting
from elman.terminal.console import result, result_json_list, talk
from elman.terminal.options import Device, Json
from elman.terminal.stdin import read_lines

DEFAULT_BEAM = 5
"""Hypotheses of a beam search that nobody asked for otherwise."""


def translate(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A translator's run folder.", show_default=False)
    ],
    file: Annotated[
        str, typer.Argument(metavar="[FILE|-]", help="A text, line by line; - reads stdin.")
    ] = "-",
    beam: Annotated[
        int | None,
        typer.Option(metavar="K", help=f"{PROSE['beam_size']} [default: {DEFAULT_BEAM}]"),
    ] = None,
    n_best: Annotated[
        int, typer.Option(metavar="N", help="Print so many translations of each line, as TSV.")
    ] = 1,
    length_penalty: Annotated[float, setting("length_penalty", metavar="X")] = 1.0,
    coverage_penalty: Annotated[float, setting("coverage_penalty", metavar="X")] = 0.0,
    greedy: Annotated[bool, setting("greedy", "--greedy")] = False,
    temperature: Annotated[
        float | None,
        typer.Option(metavar="X", help="Draw translations instead, at this temperature."),
    ] = None,
    seed: Annotated[int | None, setting("seed")] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="The longest translation. [default: twice the line and 16, at most 1,000]",
        ),
    ] = None,
    attention: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw where the decoder looked, for the first line."),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Lines that are translated side by side. [default: 64; from stdin 1, so that each "
            "is answered at once]",
        ),
    ] = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Translate a text line by line.

    One line out for each line in, in the same order, as soon as it is there.
    """
    from elman.api import load
    from elman.evaluate.generated_text import decoding
    from elman.tasks.translation.handle import Translator

    settings: dict[str, Any] = {"num_samples": n_best, "seed": seed}
    if beam is not None and (greedy or temperature is not None):
        raise UsageError("a beam search draws nothing", "drop --beam, or what stands beside it")
    if greedy and temperature is not None:
        raise UsageError("--greedy draws nothing", "drop --greedy or --temperature")
    if greedy or temperature is not None:
        settings |= {"greedy": greedy, "temperature": 1.0 if temperature is None else temperature}
    else:
        settings |= {
            "beam_size": max(DEFAULT_BEAM if beam is None else beam, n_best),
            "length_penalty": length_penalty,
            "coverage_penalty": coverage_penalty,
        }
    decoding(settings)  # a wrong setting is told before a large model is read
    translator = load(model, device=device, kind=Translator)
    lines = read_lines(file)
    if attention is not None:
        lines = _drawn(translator, lines, attention, settings)
    size = batch_size or (1 if file == "-" else 64)
    found = translator.translations(lines, batch_size=size, max_tokens=max_tokens, **settings)
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


def _drawn(translator: Any, lines: Any, path: Path, settings: dict[str, Any]) -> Any:
    """The lines again, after a picture of the first with anything in it."""
    before = []
    for line in lines:
        before.append(line)
        if line.strip():
            translator.draw_alignment(line, path, **{**settings, "num_samples": 1})
            talk(f"drawn: {path}, line {len(before)}")
            break
    return chain(before, lines)
