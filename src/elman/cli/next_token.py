"""`elman next`: the most likely next tokens."""

from __future__ import annotations

import json as json_module
from typing import Annotated

import typer

from elman.terminal.console import result, result_json, table, talk_notes
from elman.terminal.options import Device, Json, Label, Model
from elman.terminal.stdin import read_stdin


def next_token(
    model: Model,
    prefix: Annotated[
        str,
        typer.Argument(
            metavar="[PREFIX|-]",
            help="The text so far; - reads it from stdin. Empty: the start of a text.",
            show_default=False,
        ),
    ] = "",
    k: Annotated[int, typer.Option("-k", metavar="K", help="How many tokens to show.", min=1)] = 10,
    label: Label = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Show the most likely next tokens after a prefix."""
    from elman.api import LM, load

    lm = load(model, device=device, kind=LM, label=label)
    talk_notes(lm.notes)
    expected = lm.next(read_stdin() if prefix == "-" else prefix, k=k)
    if json:
        result_json(
            [{"token": token, "probability": probability} for token, probability in expected]
        )
        return
    rows = [
        (rank, visible(token), f"{probability:.4f}", "█" * round(40 * probability))
        for rank, (token, probability) in enumerate(expected, start=1)
    ]
    result(table(rows, header=("rank", "token", "probability", "")))


def visible(token: str) -> str:
    """Quote and escape a token that has spaces or control characters."""
    plain = token.isprintable() and not any(c.isspace() for c in token) and token
    return token if plain else json_module.dumps(token, ensure_ascii=False)
