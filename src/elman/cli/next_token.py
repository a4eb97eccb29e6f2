"""`elman next`: the most likely next tokens."""

from __future__ import annotations

from typing import Annotated

from elman.cli.default_model import MaybeModel, model_or_default
from elman.runs.packaged import MEASURERS
from elman.terminal.console import result, result_json, table, talk_notes, visible
from elman.terminal.options import Device, Json, Label, MaxLine, argument, option
from elman.terminal.stdin import read_stdin


def next_token(
    model: MaybeModel = None,
    prefix: Annotated[
        str | None,
        argument("[PREFIX|-]", "The text so far; - reads it from stdin. Empty: start of a text."),
    ] = None,
    k: Annotated[int, option("K", "How many tokens to show.", "-k", min=1)] = 10,
    label: Label = None,
    device: Device = "auto",
    max_line: MaxLine = None,
    json: Json = False,
) -> None:
    """Show the most likely next tokens after a prefix."""
    from elman.api import LM, load

    model, prefix = model_or_default(model, prefix, MEASURERS)
    lm = load(model, device=device, kind=LM, label=label)
    prefix = read_stdin() if prefix == "-" else prefix or ""
    talk_notes([*lm.notes_after(prefix), *lm.notes])
    expected = lm.next(prefix, k=k)
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
