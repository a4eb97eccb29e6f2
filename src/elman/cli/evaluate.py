"""`elman evaluate`: measure a model by the metrics of its task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any

import typer

from elman.base.errors import UsageError
from elman.tasks import all_tasks, task_named
from elman.tasks.task import EvaluateOption, imported
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
from elman.terminal.options import Device, Json, Model, Quantise, option_parameters


def evaluate(**given: Any) -> None:
    """Measure a model on data it has not seen.

    A language model by perplexity and bits per byte, the files read as one running text; a model
    of another task by that task's own figures. With --quantise, the change by rounding is printed
    beside the rounded model's figures. With --suite, a language model by its accuracy on minimal
    pairs or on predictions about regions of sentences.
    """
    from elman.api import LM, load

    pictures = {o: path for o in _task_options() if (path := given.pop(o.name)) is not None}
    options = EvaluateOptions(**given)
    model, data, json = options.model, options.data, options.json
    if options.suite is not None:
        lm = load(model, device=options.device, quantise=options.quantise, kind=LM)
        talk_notes(lm.notes)
        _judge(lm.judge(data, suite=options.suite), json=json)
        return
    found, evaluations = {}, {}
    for name in (model, *(options.beside or ())):
        handle = load(name, device=options.device, quantise=options.quantise)
        talk_notes(getattr(handle, "notes", ()))
        own = _options_of(handle)
        for option in pictures:
            if option not in own:
                flag = option.name.replace("_", "-")
                raise UsageError(
                    f"{name} is {handle.what}, which has no --{flag}", f"leave out --{flag}"
                )
        lanes = {}
        if options.batch_size is not None:
            if not isinstance(handle, LM):
                raise UsageError(
                    f"{name} is {handle.what}, which reads each sentence for itself, not in lanes",
                    "leave --batch-size out",
                )
            lanes = {"batch_size": options.batch_size}
        evaluation = evaluations[name] = handle.evaluate(data, **lanes)
        if impossible := getattr(evaluation, "impossible", 0):
            from elman.ngrams.statistics import why_infinite

            talk_notes([f"of the text {why_infinite(impossible, evaluation.tokens)}"])
        exact = None
        if options.quantise and hasattr(evaluation, "perplexity"):
            exact = load(name, device=options.device).evaluate(data, **lanes).perplexity
        found[name] = asdict(evaluation) | ({} if exact is None else {"exact_perplexity": exact})
        if json:
            continue
        if options.beside:
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
        for option in pictures:
            if option.rows is not None:
                result(table(*imported(option.rows)(evaluation)))
    if json:
        result_json(list(found.values()) if options.beside else found[model])
    for option, path in pictures.items():
        imported(option.draw)(evaluations, Path(path))
        talk(f"drawn: {path}")


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """The arguments and options of the command; those of single tasks come beside them."""

    model: Model
    data: Annotated[
        list[str],
        typer.Argument(
            metavar="DATA...",
            help="Text files, folders, or built-in names; for other tasks than language models, "
            "files of the kind that they learn from.",
            show_default=False,
        ),
    ]
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Language models: lanes read side by side; 1 is exact, more is quicker. "
            "[default: by length]",
        ),
    ] = None
    beside: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL", help="Measure this model too, in the same picture; may be repeated."
        ),
    ] = None
    quantise: Quantise = None
    suite: Annotated[
        str | None,
        typer.Option(
            metavar="blimp|syntaxgym", help="Judge grammar instead, by the files of a test suite."
        ),
    ] = None
    device: Device = "auto"
    json: Json = False


def _task_options() -> list[EvaluateOption]:
    return [option for task in all_tasks() for option in task.evaluate_options]


def _options_of(handle: Any) -> Sequence[EvaluateOption]:
    run = getattr(handle, "run", None)
    return () if run is None else task_named(run.config.task).evaluate_options


def _with_task_options(command: Callable[..., None]) -> None:
    """Write the options into the command's signature, from which typer reads them."""
    shared = option_parameters(EvaluateOptions)
    own = [
        Parameter(
            option.name,
            Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                str | None, typer.Option(metavar=option.metavar, help=option.help)
            ],
        )
        for option in _task_options()
    ]
    command.__signature__ = Signature([*shared[:3], *own, *shared[3:]])  # type: ignore[attr-defined]


_with_task_options(evaluate)


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
