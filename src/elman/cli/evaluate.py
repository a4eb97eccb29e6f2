"""`elman evaluate`: measure a model by the metrics of its task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from inspect import Signature
from pathlib import Path
from typing import Annotated, Any

from elman.base.counting import counted
from elman.base.errors import UsageError
from elman.base.tables import imported
from elman.cli.provenance import Index, explainer
from elman.tasks import Task
from elman.tasks.task import EvaluateOption
from elman.terminal.adapting import adapted, ways_to_adapt
from elman.terminal.console import (
    duration,
    figure,
    number,
    reading_notes,
    result,
    result_json,
    share,
    spoken,
    table,
    talk,
    talk_notes,
    unknown_note,
    visible,
)
from elman.terminal.options import (
    Adapt,
    AdaptSettings,
    AsIs,
    Cache,
    Column,
    Device,
    DropoutScale,
    Encoding,
    Json,
    MaxLine,
    Model,
    Quantise,
    Samples,
    Temperature,
    Tune,
    argument,
    evaluated_signature,
    option,
    parameter,
    picture,
)


def evaluate(
    model: Model,
    data: Annotated[
        list[str],
        argument(
            "DATA...",
            "Text files, folders, or built-in names; for other tasks than language models, files "
            "like those that they are trained on.",
        ),
    ],
    batch_size: Annotated[
        int | None,
        option(
            "N",
            "Language models: number of lanes; 1 is exact, more is faster. [default: by length]",
            min=1,
        ),
    ] = None,
    context: Annotated[
        int | None,
        option(
            "K",
            "Language models: predict each token from at most the K tokens before it.",
            min=1,
        ),
    ] = None,
    beside: Annotated[
        list[str] | None,
        option("MODEL", "Also measure this model; may be repeated."),
    ] = None,
    adapt: Adapt = False,
    cache: Cache = False,
    temperature: Temperature = None,
    samples: Samples = None,
    dropout_scale: DropoutScale = None,
    tune: Tune = None,
    settings: AdaptSettings = None,
    quantise: Quantise = None,
    suite: Annotated[
        str | None,
        option("blimp|syntaxgym", "Measure grammar instead, with the files of a test suite."),
    ] = None,
    novelty: Annotated[
        bool,
        option(None, "Language models: how much of what it writes is copied.", "--novelty"),
    ] = False,
    index: Index = None,
    tokens: Annotated[
        int | None, option("N", "Tokens to write for --novelty. [default: 10000]", min=1)
    ] = None,
    seed: Annotated[int | None, option("N", "Random seed of --novelty. [default: 1]")] = None,
    curve: Annotated[str | None, picture("Draw what --novelty finds")] = None,
    as_is: AsIs = False,
    column: Column = None,
    encoding: Encoding = None,
    device: Device = "auto",
    max_line: MaxLine = None,
    json: Json = False,
    *,
    of_tasks: Mapping[EvaluateOption, str],
) -> None:
    """Measure a model on data it has not seen.

    Language models: perplexity and bits per byte, reading the files as one text; other tasks have
    their own figures. With --quantise, also the change by rounding. With --suite, the accuracy of a
    language model on minimal pairs or on predictions about regions of sentences. With --adapt or
    --cache, language models adapt to the text while they read it; --tune alone finds a temperature.
    With --novelty, the share of what a language model writes that stands verbatim in its training
    text, by length, beside that of the data.
    """
    from elman.api import LM, load
    from elman.runs.packaged import located
    from elman.runs.run_folder import check_run_folder
    from elman.text.converting import check_column, utf8_files
    from elman.text.records import TEXT, plain_sheets
    from elman.text.repeated import learnt_texts

    ways = ways_to_adapt(
        adapt=adapt,
        cache=cache,
        settings=settings,
        temperature=temperature,
        samples=samples,
        dropout_scale=dropout_scale,
    )
    if novelty or suite is not None:
        unread = {"batch_size": batch_size, "beside": beside, "column": column}
        unread |= {one.name: value for one, value in of_tasks.items()}
        unread |= {"suite": suite, "context": context} if novelty else {}
        for key, value in unread.items():
            if value is not None:
                flag = f"--{key.replace('_', '-')}"
                measure = "--novelty" if novelty else "--suite"
                raise UsageError(f"{flag} has no effect with {measure}", f"drop {flag}")
    if encoding is not None:
        data = utf8_files(data, encoding)
    of_novelty = {"index": index, "tokens": tokens, "seed": seed, "curve": curve}
    if novelty:
        lm = adapted(load(model, device=device, quantise=quantise, kind=LM), ways, tune)
        talk_notes(lm.notes)
        how = {"num_tokens": tokens or 10_000, "seed": 1 if seed is None else seed}
        measured = lm.novelty(explainer(lm, index).indexed, data, as_is=as_is, **how)
        _show_novelty(measured, model, json=json)
        if curve is not None:
            from elman.evaluate.novelty import draw_novelty

            draw_novelty(measured, model, Path(curve))
            talk(f"drawn: {curve}")
        return
    for key, value in of_novelty.items():
        if value is not None:
            raise UsageError(f"--{key} has no effect without --novelty", "add it, or drop --" + key)
    if suite is not None:
        lm = adapted(load(model, device=device, quantise=quantise, kind=LM), ways, tune)
        talk_notes(lm.notes)
        _judge(lm.judge(data, suite=suite, context=context, as_is=as_is), json=json)
        return
    for name in beside or ():  # before the first one is measured
        if not {"*", "+"} & set(name) and not (folder := located(name)).exists():
            check_run_folder(folder)
    found, evaluations = dict[str, dict[str, Any]](), dict[str, Any]()
    for name in (model, *(beside or ())):
        handle = adapted(load(name, device=device, quantise=quantise), ways, tune)
        talk_notes(getattr(handle, "notes", ()))
        for one in of_tasks:
            if handle.task is None or one not in handle.task.evaluate_options:
                flag = f"--{one.name.replace('_', '-')}"
                raise UsageError(f"{name} is {handle.what}, which has no {flag}", f"drop {flag}")
        given: dict[str, Any] = {o.name: v for o, v in of_tasks.items() if o.draw is None}
        of_lms = {"batch_size": batch_size, "context": context, "as_is": as_is or None}
        for key, value in {**of_lms, "column": column}.items():
            if value is None:
                continue
            if not isinstance(handle, LM):
                flag = f"--{key.replace('_', '-')}"
                raise UsageError(
                    f"{name} is {handle.what}, which reads sentences one by one",
                    f"drop {flag}",
                )
            if key in of_lms:
                given[key] = value
        if isinstance(handle, LM):
            texts, data = data, utf8_files(data, column=column or TEXT)
            if not found:  # the files of the first model are those that were typed
                check_column(column, texts, data)
                talk_notes(plain_sheets(data))
            talk_notes(learnt_texts([r.config.data.train for r in handle.runs], data))
        evaluation = evaluations[name] = handle.evaluate(data, **given)
        talk_notes(_notes(evaluation))
        exact = None
        if quantise and hasattr(evaluation, "perplexity"):
            exact_model: Any = load(name, device=device)
            if ways or tune:  # with the settings that were found, to see the rounding alone
                exact_model = handle.applied_to(exact_model)
            exact = exact_model.evaluate(data, **given).perplexity
        found[name] = asdict(evaluation) | ({} if exact is None else {"exact_perplexity": exact})
        if ways or tune:
            found[name]["adaptation"] = handle.adaptation
        if json:
            continue
        if beside:
            result(f"{name}:")
        _show(evaluation, exact)
        for one in of_tasks:
            if one.rows is not None:
                result(table(*imported(one.rows)(evaluation)))
    if json:
        result_json(list(found.values()) if beside else found[model])
    for one, path in of_tasks.items():
        if one.draw is not None:
            imported(one.draw)(evaluations, Path(path))
            talk(f"wrote {path}")


def command(tasks: Iterable[Task]) -> Callable[..., None]:
    """Make the command: its own options, and those of the tasks."""
    declared = [one for task in tasks for one in task.evaluate_options]

    def run(**given: Any) -> None:
        paths = {one: given.pop(one.name) for one in declared}
        evaluate(**given, of_tasks={o: path for o, path in paths.items() if path is not None})

    *own, _ = evaluated_signature(evaluate).parameters.values()  # without `of_tasks`
    shared = [one.replace(kind=one.KEYWORD_ONLY) for one in own]
    added = [
        parameter(
            one.name,
            Annotated[
                str | None,
                option(one.metavar, one.help) if one.draw is None else picture(one.help),
            ],
        )
        for one in declared
    ]
    # typer reads a command's options from its signature.
    run.__signature__ = Signature([*shared[:4], *added, *shared[4:]])  # type: ignore[attr-defined]
    run.__doc__ = evaluate.__doc__
    return run


def _show_novelty(found: Any, name: str, *, json: bool) -> None:
    if json:
        result_json(asdict(found))
        return
    parts = [(name, found.generated)] + ([("data", found.data)] if found.data else [])
    rows = [
        (length, *("" if one.shares[i] is None else f"{one.shares[i]:.2%}" for _, one in parts))
        for i, length in enumerate(found.lengths)
    ]
    result(table(rows, header=("length", *(label for label, _ in parts))))
    result("")
    summary = [
        ("tokens", *(number(one.tokens) for _, one in parts)),
        ("mean longest stretch", *(f"{one.mean_length:.2f}" for _, one in parts)),
        ("longest stretch", *(number(one.longest) for _, one in parts)),
    ]
    result(table(summary, header=("", *(label for label, _ in parts))))
    longest = found.generated
    place = "" if longest.file is None else f" ({longest.file}:{longest.line})"
    result(f"\n{visible(longest.longest_text)}{place}")


def _judge(report: Any, *, json: bool) -> None:
    if json:
        result_json(asdict(report))
        return
    tokens, unknown = (sum(getattr(p, n) for p in report.parts) for n in ("tokens", "unknown"))
    talk_notes([unknown_note(unknown, tokens)])
    talk_notes(sorted({note for part in report.parts for note in reading_notes(part.reads_as)}))
    rows = [
        (
            part.name,
            part.items,
            f"{part.unknown / max(1, part.tokens):.1%}",
            part.ties,
            part.accuracy,
            part.accuracy_without_ties,
        )
        for part in report.parts
    ]
    apart = [p.accuracy_without_ties for p in report.parts if p.accuracy_without_ties is not None]
    share = f"{unknown / max(1, tokens):.1%}"
    items, ties = (sum(getattr(p, n) for p in report.parts) for n in ("items", "ties"))
    without = sum(apart) / len(apart) if apart else None
    rows.append(("mean", items, share, ties, report.accuracy, without))
    header = (report.suite, "items", "unknown", "ties", "accuracy", "without ties")
    result(table(rows, header=header))
    if ties:
        talk_notes([f"{counted(ties, 'tie')}: equally likely sentences, which count as half"])


def _notes(evaluation: Any) -> list[str]:
    """How the text was read, and why figures of it are infinite or undefined."""
    notes = reading_notes(getattr(evaluation, "reads_as", ""))
    if impossible := getattr(evaluation, "impossible", 0):
        from elman.ngrams.statistics import why_infinite

        notes.append(f"of the text {why_infinite(impossible, evaluation.tokens)}")
    if undefined := getattr(evaluation, "undefined", 0):
        from elman.ngrams.smoothing import UNDEFINED

        share = f"{undefined:,} of {evaluation.tokens:,} tokens"
        notes.append(f"{share} have undefined estimates: {UNDEFINED}")
    return notes


def _show(evaluation: Any, exact: float | None) -> None:
    """Print the figures; `exact` is the perplexity before rounding."""
    is_text = hasattr(evaluation, "perplexity_without_unknown")
    rows = _text_rows(evaluation) if is_text else _rows(evaluation)
    if exact is not None:
        change = evaluation.perplexity / exact - 1
        place = 1 + [name for name, _ in rows].index("perplexity")
        rows.insert(place, ("perplexity before rounding", f"{number(exact)} ({change:+.3%} since)"))
    result(table(rows))
    if labels := getattr(evaluation, "labels", None):
        by_label = [
            (label, *(round(value, 4) for value in asdict(f).values()))
            for label, f in labels.items()
        ]
        result("\n" + table(by_label, ("label", "precision", "recall", "f1", "count")))


def _rows(evaluation: Any) -> list[tuple[str, str]]:
    rows = []
    for name, value in asdict(evaluation).items():
        if name == "seconds":
            rows.append(("time", duration(value)))
        elif isinstance(value, (int, float)):
            rows.append((spoken(name), figure(name, value)))
        elif isinstance(value, str):
            rows.append((spoken(name), value))
    return rows


def _text_rows(evaluation: Any) -> list[tuple[str, str]]:
    speed = round(evaluation.tokens / max(evaluation.seconds, 1e-9))
    known = ("perplexity without unknowns", number(evaluation.perplexity_without_unknown))
    return [
        ("unknown tokens", share(evaluation.oov, evaluation.tokens)),
        ("perplexity", number(evaluation.perplexity)),
        *([known] if evaluation.oov else []),
        ("nats per token", f"{evaluation.nats_per_token:.4f}"),
        ("bits per byte", f"{evaluation.bits_per_byte:.4f}"),
        ("time", f"{duration(evaluation.seconds)}, {number(speed)} tokens/s"),
    ]
