"""`elman evaluate`: how well a model does, by the measure of its task."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from elman.base.errors import UsageError
from elman.terminal.console import (
    duration,
    figure,
    number,
    result,
    result_json,
    spoken,
    table,
    talk,
    talk_notes,
)
from elman.terminal.options import Device, Json, Model, Quantise


def evaluate(
    model: Model,
    data: Annotated[
        list[str],
        typer.Argument(
            metavar="DATA...",
            help="Text files, folders, or built-in names; for other tasks than language models, "
            "files of the kind that they learn from.",
            show_default=False,
        ),
    ],
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Language models: lanes read side by side; 1 is exact, more is quicker. "
            "[default: by length]",
        ),
    ] = None,
    by_length: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Translators: draw BLEU by the length of the source."),
    ] = None,
    beside: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL", help="Measure this model too, in the same picture; may be repeated."
        ),
    ] = None,
    confusion: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Classifiers: draw which label is taken for which."),
    ] = None,
    quantise: Quantise = None,
    suite: Annotated[
        str | None,
        typer.Option(
            metavar="blimp|syntaxgym", help="Judge grammar instead, by the files of a test suite."
        ),
    ] = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Measure a model on data it has not seen.

    A language model by perplexity and bits per byte, the files read as one running text; a model
    of another task by that task's own figures. With --quantise, beside the rounded model's figures
    stands what rounding has changed. With --suite, a language model by its accuracy on minimal
    pairs or on predictions about regions of sentences.
    """
    from elman.api import LM, load

    if suite is not None:
        lm = load(model, device=device, quantise=quantise, kind=LM)
        talk_notes(lm.notes)
        _judge(lm.judge(data, suite=suite), json=json)
        return
    found, groups = {}, {}
    for name in (model, *(beside or ())):
        handle = load(name, device=device, quantise=quantise)
        talk_notes(getattr(handle, "notes", ()))
        if by_length is not None and not hasattr(handle, "translations"):
            raise UsageError(
                f"{name} is {handle.what}, whose quality has no source to go by",
                "--by-length is for translators",
            )
        if batch_size is not None and not isinstance(handle, LM):
            raise UsageError(
                f"{name} is {handle.what}, which reads each sentence for itself, not in lanes",
                "leave --batch-size out",
            )
        lanes = {} if batch_size is None else {"batch_size": batch_size}
        evaluation = handle.evaluate(data, **lanes)
        if impossible := getattr(evaluation, "impossible", 0):
            from elman.ngrams.statistics import why_infinite

            talk_notes([f"of the text {why_infinite(impossible, evaluation.tokens)}"])
        if confusion is not None:
            _draw_confusion(evaluation, name, handle.what, confusion)
        groups[name] = getattr(evaluation, "by_length", [])
        exact = None
        if quantise and hasattr(evaluation, "perplexity"):
            exact = load(name, device=device).evaluate(data, **lanes).perplexity
        found[name] = asdict(evaluation) | ({} if exact is None else {"exact_perplexity": exact})
        if json:
            continue
        if beside:
            result(f"{name}:")
        is_text = hasattr(evaluation, "perplexity_without_unknown")
        rows = _text_rows(evaluation) if is_text else _rows(evaluation)
        if exact is not None:
            change = evaluation.perplexity / exact - 1
            rows.insert(1, ("perplexity before rounding", f"{number(exact)} ({change:+.3%} since)"))
        result(table(rows))
        if labels := getattr(evaluation, "labels", None):
            by_label = [(label, *map(_share, asdict(f).values())) for label, f in labels.items()]
            result("")
            result(table(by_label, ("label", "precision", "recall", "f1", "count")))
        if by_length is not None:
            result(table(_length_rows(evaluation), ("source words", "sentences", "BLEU")))
    if json:
        result_json(list(found.values()) if beside else found[model])
    if by_length is not None:
        from elman.tasks.translation.pictures import draw_by_length

        draw_by_length(groups, by_length)
        talk(f"drawn: {by_length}")


def _draw_confusion(evaluation: Any, name: str, what: str, path: Path) -> None:
    from elman.tasks.classification.pictures import draw_confusion

    if not hasattr(evaluation, "confusion"):
        raise UsageError(f"{name} is {what}, not a classifier", "leave out --confusion")
    draw_confusion(evaluation.confusion, path)
    talk(f"drawn: {path}")


def _length_rows(evaluation: Any) -> list[tuple[str, int, float]]:
    return [
        (f"{group.shortest} to {group.longest}", group.sentences, round(group.bleu, 2))
        for group in evaluation.by_length
    ]


def _judge(report: Any, *, json: bool) -> None:
    if json:
        result_json(asdict(report))
        return
    rows = [(part.name, part.items, part.ties, part.accuracy) for part in report.parts]
    items, ties = (sum(column) for column in list(zip(*rows, strict=True))[1:3])
    rows.append(("mean", items, ties, report.accuracy))
    result(table(rows, header=(report.suite, "items", "ties", "accuracy")))


def _rows(evaluation: Any) -> list[tuple[str, str]]:
    """The figures of any task by their names."""
    rows = []
    for name, value in asdict(evaluation).items():
        if name == "seconds":
            rows.append(("time", duration(value)))
        elif isinstance(value, (int, float)):
            rows.append((spoken(name), figure(name, value)))
        elif isinstance(value, str):
            rows.append((spoken(name), value))
    return rows


def _share(value: float) -> float:
    """A share with the digits that matter; a count as it is."""
    return round(value, 4)


def _text_rows(evaluation: Any) -> list[tuple[str, str]]:
    share = evaluation.oov / evaluation.tokens
    return [
        ("perplexity", number(evaluation.perplexity)),
        ("nats per token", f"{evaluation.nats_per_token:.4f}"),
        ("bits per byte", f"{evaluation.bits_per_byte:.4f}"),
        ("tokens", number(evaluation.tokens)),
        ("out of vocabulary", f"{number(evaluation.oov)} ({share:.2%})"),
        ("perplexity without unknowns", number(evaluation.perplexity_without_unknown)),
        ("time", duration(evaluation.seconds)),
    ]
