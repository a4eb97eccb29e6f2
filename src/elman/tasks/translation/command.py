"""`elman translate`: translate text line by line."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elman.base.counting import counted
from elman.decode.options import CONDITIONAL, DecodeOptions, names
from elman.terminal.console import result, result_json_list, talk
from elman.terminal.options import (
    Json,
    MaxLine,
    Shown,
    check_conditional,
    option,
    picture,
    with_options,
)
from elman.terminal.stdin import noted, read_lines

if TYPE_CHECKING:
    from elman.tasks.translation.handle import Translator

with_decoding = with_options(
    DecodeOptions,
    *names(scheme="beam"),
    "num_samples",
    "greedy",
    "temperature",
    "seed",
    "max_tokens",
    "unk",
    defaults=CONDITIONAL,
    num_samples=Shown(flag="--n-best", help="Print this many translations of each line, as TSV."),
    temperature=Shown(help="Sample translations at this temperature instead.", default=""),
    max_tokens=Shown(
        help="Longest translation in tokens.", default="twice the line and 16, at most 1,000"
    ),
)


@with_decoding
def translate(
    handle: Translator,
    file: Annotated[
        str, typer.Argument(metavar="[FILE|-]", help="A text, line by line; - reads stdin.")
    ] = "-",
    *,
    options: dict[str, Any],
    attention: Annotated[
        Path | None, picture("Draw the attention of the decoder for the first line")
    ] = None,
    batch_size: Annotated[
        int | None,
        option(
            "N",
            "Lines that are translated together. [default: 64, on a GPU 1,024; from stdin 1, so "
            "that each is answered at once]",
            min=1,
        ),
    ] = None,
    max_line: MaxLine = None,
    json: Json = False,
) -> None:
    """Translate a text line by line.

    One line out for each line in, in the same order, as soon as it is ready.
    """
    lines = noted(read_lines(file))
    if attention is not None:
        lines = _drawn(handle, lines, attention, options)
    ranked = options.get("num_samples", 1) > 1
    size = batch_size or (1 if file == "-" else None)
    found = handle.translations(lines, batch_size=size, **options)
    if json:
        result_json_list([vars(t) for t in translations] for translations in found)
        return
    for number, translations in enumerate(found, start=1):
        if any(t.finish_reason == "length" for t in translations):
            talk(f"line {number} was cut after {counted(translations[0].tokens, 'token')}")
        if not ranked:
            result(translations[0].text)
        for rank, t in enumerate(translations if ranked else (), start=1):
            result(f"{number}\t{rank}\t{t.score:.4f}\t{t.logprob:.4f}\t{t.text}")


check_translate = with_decoding(check_conditional)


def _drawn(
    translator: Translator, lines: Iterator[str], path: Path, options: dict[str, Any]
) -> Iterator[str]:
    """Draw the attention for the first line that is not blank; return all lines."""
    before = []
    for line in lines:
        before.append(line)
        if line.strip():
            translator.draw_alignment(line, path, **{**options, "num_samples": 1})
            talk(f"wrote {path} (line {len(before)})")
            break
    return chain(before, lines)
