"""`elman train snm`: a sparse non-negative matrix of n-grams and skip-grams."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from elman.base.config import from_dict
from elman.tasks.ngram.train_command import figures
from elman.terminal.console import number, result, result_json, table, talk
from elman.terminal.options import Json, Measured, MeasuredToo, Order, Out, Settings, Texts


def train_snm(
    data: Texts = None,
    order: Order = None,
    skip: Annotated[
        int | None,
        typer.Option(metavar="N", help="Most words in a skip-gram's gap; 0: none. [default: 3]"),
    ] = None,
    valid: Measured = None,
    test: MeasuredToo = None,
    out: Out = None,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Count, learn what counts are worth, and print where the model is and how good it is."""
    from elman.runs.new_folder import DEFAULT_CORPUS, new_run_folder
    from elman.tasks.ngram.task import counting_settings
    from elman.tasks.snm.settings import SNMConfig
    from elman.tasks.snm.task import train_snm as run
    from elman.tokens.tokenizer_config import TokenizerConfig

    asked = counting_settings(settings or ())
    model = asked["model"]
    model |= {"order": order} if order is not None else {}
    model |= {"max_skip": skip} if skip is not None else {}
    texts = data or [DEFAULT_CORPUS]
    folder: Path = out or new_run_folder("snm", texts)
    summary = run(
        texts,
        folder,
        valid=valid or (),
        test=test or (),
        model=from_dict(SNMConfig, model, "model"),
        tokenizer=from_dict(TokenizerConfig, asked["tokenizer"], "tokenizer"),
        note=lambda text: talk(f"· {text}"),
    )
    if json:
        result_json(summary)
        return
    made = [
        ("contexts", number(summary["contexts"])),
        ("entries", number(summary["entries"])),
    ]
    result(table(figures(summary, made)))
