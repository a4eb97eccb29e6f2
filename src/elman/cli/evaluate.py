"""`elman evaluate`: how well a model predicts a text."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from elman.cli.console import duration, number, result, result_json, table
from elman.cli.options import Device, Json, Model


def evaluate(
    model: Model,
    data: Annotated[
        list[str],
        typer.Argument(
            metavar="DATA...", help="Text files, folders, or built-in names.", show_default=False
        ),
    ],
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Lanes read side by side; 1 is exact, more is quicker. [default: by length]",
        ),
    ] = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Measure perplexity and bits per byte on a text.

    The files are read as one running text.
    """
    from elman.api import load

    evaluation = load(model, device=device).evaluate(data, batch_size=batch_size)
    if json:
        result_json(asdict(evaluation))
        return
    share = evaluation.oov / evaluation.tokens
    rows = [
        ("perplexity", number(evaluation.perplexity)),
        ("nats per token", f"{evaluation.nats_per_token:.4f}"),
        ("bits per byte", f"{evaluation.bits_per_byte:.4f}"),
        ("tokens", number(evaluation.tokens)),
        ("out of vocabulary", f"{number(evaluation.oov)} ({share:.2%})"),
        ("perplexity without unknowns", number(evaluation.perplexity_without_unknown)),
        ("time", duration(evaluation.seconds)),
    ]
    result(table(rows))
