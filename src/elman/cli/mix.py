"""`elman mix`: fit the weights of a mixture."""

from __future__ import annotations

from typing import Annotated

from elman.terminal.console import (
    number,
    reading_notes,
    result,
    result_json,
    table,
    talk_notes,
    unknown_note,
)
from elman.terminal.options import AsIs, Column, Device, Json, argument, option
from elman.terminal.stdin import in_columns


def mix(
    models: Annotated[
        list[str],
        argument("MODEL...", "Two or more run folders or ARPA files with the same tokenizer."),
    ],
    tune: Annotated[
        list[str],
        option(
            "FILE",
            "Held-out text to fit the weights to; may be repeated.",
            show_default=False,
        ),
    ],
    column: Column = None,
    as_is: AsIs = False,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Fit the weights of a mixture of models to a text.

    The last line is the mixture, which every command accepts as a MODEL.
    """
    from elman.api import mix as fit_mixture

    (texts,) = in_columns(column, tune)
    name, fit = fit_mixture(models, texts, device=device, as_is=as_is)
    talk_notes([unknown_note(fit.oov, fit.tokens), *reading_notes(fit.reads_as), *fit.notes])
    parts = list(zip(models, fit.weights, fit.perplexities, strict=True))
    if json:
        keys = ("model", "weight", "perplexity")
        result_json(
            {
                "model": name,
                "perplexity": fit.perplexity,
                "tokens": fit.tokens,
                "oov": fit.oov,
                "iterations": fit.iterations,
                "parts": [dict(zip(keys, part, strict=True)) for part in parts],
            }
        )
        return
    rows = [(model, f"{weight:.4f}", number(perplexity)) for model, weight, perplexity in parts]
    rows.append(("mixture", "", number(fit.perplexity)))
    result(table(rows, header=("model", "weight", "perplexity")))
    result(f"\n{name}")
