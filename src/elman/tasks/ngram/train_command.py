"""`elman train ngram`: a language model by counting."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from elman.base.config import from_dict
from elman.terminal.console import duration, number, result, result_json, table, talk
from elman.terminal.options import Json, Measured, MeasuredToo, Order, Out, Texts


def train_ngram(
    data: Texts = None,
    order: Order = None,
    smoothing: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="How unseen n-grams are treated: kneser-ney, absolute, witten-bell, "
            "jelinek-mercer, katz, add-delta, maximum-likelihood or stupid-backoff. "
            "[default: kneser-ney]",
        ),
    ] = None,
    prune: Annotated[
        str | None,
        typer.Option(
            metavar="N,N...",
            help="For each length, leave out n-grams that occur so often or less, as in 0,0,1.",
        ),
    ] = None,
    valid: Measured = None,
    test: MeasuredToo = None,
    out: Out = None,
    arpa: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the model as an ARPA file (.gz: compressed) too."),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Count in this much memory (2G), beyond it on disk."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change one setting: of the model (vocabulary, delta, backoff_factor, "
            "fallback_discounts), as in model.vocabulary=closed, or of the tokenizer (kind, file, "
            "lowercase, min_count, vocab_size). May be repeated.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Count, smooth, and print where the model is and how good it is."""
    from elman.runs.new_folder import DEFAULT_CORPUS, new_run_folder
    from elman.tasks.ngram.settings import NgramConfig
    from elman.tasks.ngram.task import counting_settings, memory_size
    from elman.tasks.ngram.task import train_ngram as run
    from elman.tokens.tokenizer_config import TokenizerConfig

    asked = counting_settings(settings or ())
    model = asked["model"]
    model |= {"order": order} if order is not None else {}
    model |= {"smoothing": smoothing} if smoothing is not None else {}
    model |= {"prune": prune} if prune is not None else {}
    texts = data or [DEFAULT_CORPUS]
    summary = run(
        texts,
        out or new_run_folder("ngram", texts),
        valid=valid or (),
        test=test or (),
        model=from_dict(NgramConfig, model, "model"),
        tokenizer=from_dict(TokenizerConfig, asked["tokenizer"], "tokenizer"),
        arpa=arpa,
        memory=None if memory is None else memory_size(memory),
        note=lambda text: talk(f"· {text}"),
    )
    if json:
        result_json(summary)
        return
    rows = figures(summary, [("n-grams", number(sum(summary["ngrams"])))])
    rows += [("ARPA file", str(arpa))] if arpa else []
    result(table(rows))


def figures(summary: dict[str, Any], made: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The rows that are printed at the end: how good it is, what was made, how long it took."""
    rows = []
    for prefix, name in (("", "validation"), ("test_", "test")):
        if summary.get(f"{prefix}perplexity") is not None:
            rows += [
                (f"{name} perplexity", number(summary[f"{prefix}perplexity"])),
                (f"{name} bits per byte", f"{summary[f'{prefix}bits_per_byte']:.4f}"),
            ]
    return [
        *rows,
        *made,
        ("tokens read", number(summary["tokens"])),
        ("time", duration(summary["seconds"])),
        ("run folder", summary["out"]),
    ]
