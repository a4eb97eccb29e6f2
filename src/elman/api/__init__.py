"""What `import elman` offers: open a model, train one, mix several, convert.

    lm = elman.load("runs/mine")                   or a mixture, "0.7*runs/a+0.3*runs/b"
    lm.perplexity(text)      lm.surprisal(text)    how surprising is a text?
    lm.next("students opened their", k=5)          what comes next?
    lm.generate("Once upon", max_tokens=80)        and then?

`load` returns the handle of the run's task.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from functools import partial, update_wrapper
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Any, TypeVar, get_type_hints, overload

from torch import nn

from elman.base.config import merge, nested
from elman.base.errors import UsageError, closest
from elman.base.tables import imported, is_outside, trust
from elman.evaluate.mixture_weights import MixtureFit, fit_weights
from elman.evaluate.text_quality import TextQuality, text_quality
from elman.models.mixture import Mixture
from elman.nn.quantise import quantise as quantise_weights
from elman.recipes.convert import convert as convert_model
from elman.recipes.resolve import resolve, settings_of
from elman.recipes.run import train
from elman.runs.machine import machine
from elman.runs.new_folder import new_run_folder
from elman.runs.packaged import located
from elman.runs.run_folder import CONFIG_FILE, TOKENIZER_FILE
from elman.tasks import TASKS, all_tasks, task_named
from elman.tasks.language_model_handle import LM, Completion
from elman.tasks.opening import open_run
from elman.tasks.task import Task, texts_of
from elman.terminal.progress import Progress
from elman.text.converting import Texts, named_texts, utf8_files
from elman.text.records import TEXT
from elman.text.sources import Paths, corpus_blocks, expand
from elman.train.report import Report

__all__ = [
    "LM",
    "Completion",
    "convert",
    "load",
    "mix",
    "quality",
    "train_model",
]

H = TypeVar("H")


@overload
def load(
    model: str | Path,
    *,
    device: str = "auto",
    quantise: str | None = None,
    label: str | None = None,
) -> Any: ...


@overload
def load(
    model: str | Path,
    *,
    device: str = "auto",
    kind: type[H],
    quantise: str | None = None,
    label: str | None = None,
) -> H: ...


def load(
    model: str | Path,
    *,
    device: str = "auto",
    kind: type[Any] | None = None,
    quantise: str | None = None,
    label: str | None = None,
) -> Any:
    """Open a run folder, an ARPA file, or a mixture such as `0.7*runs/a+0.3*runs/b`.

    The class of the result depends on the run's task: a language model is an `LM`. With `kind`,
    any other class is an error (and a type checker knows the class). `quantise="int8"` rounds the
    weights of a language model to one byte each: slightly less exact, and faster to generate with
    on a CPU. `label` is the label for a language model that takes one.
    """
    if Path(model).exists() or not ({"*", "+"} & set(str(model))):
        handle = _open(model, device)
    else:
        handle = _mixture(str(model), device)
    if label is not None:
        if not hasattr(handle, "given"):
            raise UsageError(f"{model} is {handle.what}, which takes no label", "drop it")
        handle = handle.given(label)
    if kind is LM and hasattr(handle, "given"):
        labels = ", ".join(handle.labels[:5]) + (", ..." if len(handle.labels) > 5 else "")
        raise UsageError(
            f"{model} is {handle.what}, and none was given", f"give it one with --label: {labels}"
        )
    if kind is not None and not isinstance(handle, kind):
        raise UsageError(f"{model} is {handle.what}, not {kind.what}", _uses(handle, model, kind))
    if quantise is not None:
        _quantise(handle, quantise)
    return handle


def mix(
    models: Sequence[str | Path], tune: Paths, *, device: str = "auto", as_is: bool = False
) -> tuple[str, MixtureFit]:
    """Fit the weights of a mixture to the text `tune` by expectation maximisation.

    Returns the mixture as `load` opens it, and the perplexities of it and of each model. Text is
    read as the training text was written, unless `as_is`.
    """
    names = [str(model) for model in models]
    if len(names) < 2:
        raise UsageError("a mixture needs two models or more", "name another model")
    for name in names:
        if {"*", "+"} & set(name):
            raise UsageError(
                f"'{name}' cannot be part of a mixture: its name contains * or +",
                "name single models by paths without these characters",
            )
    parts = [load(name, device=device, kind=LM) for name in names]
    _check_mixable(parts)
    tokenizer = parts[0].tokenizer
    text, reads_as = parts[0].encoded(tune, as_is=as_is)
    fit = fit_weights(
        [part.model for part in parts],
        text,
        boundary_id=tokenizer.boundary_id,
        unknown_id=tokenizer.unknown_id,
        line_end=next((part.line_end for part in parts if part.unit == "line"), None),
    )
    notes = tuple(f"{part.name}: {note}" for part in parts for note in part.notes)
    fit = replace(fit, reads_as=reads_as, notes=notes)
    terms = zip(fit.weights, names, strict=True)
    return "+".join(f"{weight:.4g}*{name}" for weight, name in terms), fit


def _open(model: str | Path, device: str) -> Any:
    """Open a run folder, or published files that a task reads."""
    path, name = located(model), str(model)
    where = machine(device).device
    if not (path / CONFIG_FILE).is_file():
        for task in all_tasks():
            handle = None if task.opens is None else imported(task.opens)(path, name, where)
            if handle is not None:
                return handle
    run = open_run(path, where)
    return imported(task_named(run.config.task).handle).of_run(name, run)


def _uses(handle: Any, model: str | Path, wanted: type[Any]) -> str:
    """Name the command that a model is for, and the one that makes a model of the class wanted."""
    uses = () if handle.task is None else handle.task.uses
    use = (*uses, "elman next FOLDER PREFIX")[0].replace("FOLDER", str(model))
    made_by = f"{wanted.__module__}:{wanted.__name__}"
    makers = [
        task.shortcuts[0].name if task.shortcuts else f"train {task.name}"
        for task in all_tasks()
        if task.handle == made_by
    ]
    maker = f"; `elman {makers[0]}` makes {wanted.what}" if makers else ""
    return f"it is for `{use}`{maker}"


def _mixture(model: str, device: str) -> LM:
    weights: list[float] = []
    parts: list[LM] = []
    for term in model.split("+"):
        weight, star, path = term.strip().partition("*")
        try:
            weights.append(float(weight) if star else 1.0)
        except ValueError as error:
            raise UsageError(
                f"'{term.strip()}' is not a weight times a model",
                "write it as 0.7*runs/a+0.3*runs/b",
            ) from error
        parts.append(load((path if star else weight).strip(), device=device, kind=LM))
    _check_mixable(parts)
    mixture = Mixture([part.model for part in parts], weights)
    runs = [run for part in parts for run in part.runs]
    return LM(model, mixture, parts[0].tokenizer, runs, parts)


def _quantise(handle: Any, kind: str) -> None:
    """Round the weights of a network, or of every network in a mixture."""
    found = networks(handle)
    if not found:
        raise UsageError(f"{handle.name} has no weights to quantise", "drop --quantise")
    for network in found:
        quantise_weights(network, kind)


def networks(handle: Any) -> list[nn.Module]:
    """The networks of a model or a mixture; none of a model of counts."""
    models = [part.model for part in (handle, *getattr(handle, "parts", ()))]
    return [model for model in models if isinstance(model, nn.Module)]


def _check_mixable(parts: Sequence[LM]) -> None:
    """Refuse models that give no probabilities, or have different tokenizers."""
    for part in parts:
        if not part.is_normalised:
            raise UsageError(
                f"{part.name} gives scores that do not sum to one (stupid-backoff), so it cannot "
                "be part of a mixture",
                "train it with another --smoothing, such as kneser-ney",
            )
    first = parts[0]
    for part in parts[1:]:
        if part.tokenizer.hash == first.tokenizer.hash:
            continue
        arpa = next((lm.name for lm in (first, part) if not lm.runs), None)
        raise UsageError(
            f"{first.name} and {part.name} have different tokenizers, so they cannot be mixed",
            f"train one of them with --set tokenizer.file={located(first.name) / TOKENIZER_FILE}"
            if arpa is None
            else f"train the other with the tokenizer of {arpa}: `elman convert {arpa} DIR`, "
            f"then --set tokenizer.file=DIR/{TOKENIZER_FILE}",
        )


def quality(
    text: Texts,
    *,
    by: str | Path | LM | None = None,
    against: Texts = (),
    unit: str = "word",
    device: str = "auto",
    as_is: bool = False,
) -> TextQuality:
    """Measure a generated text: files, as `train_lm` and `LM.evaluate` take them.

    `by` is another language model, or its name, for the surprisal of the text; `against` the
    training text, for what is copied from it. N-grams are of words, or of characters (`char`). `by`
    reads the text as its training text was written, unless `as_is`.
    """
    training = _files(against) if against else []
    files = _files(text)
    if isinstance(by, (str, Path)):
        by = load(by, device=device, kind=LM)
    scores: dict[str, Any] = {}
    if by is not None:
        found = by.evaluate(files, as_is=as_is)
        characters = sum(len(block.text) for block in corpus_blocks(files))
        scores = {
            "nats_per_token": found.nats_per_token,
            "nats_per_character": found.nats_per_token * found.tokens / characters,
            "unknown": found.oov / found.tokens,
            "reads_as": found.reads_as,
        }
    return text_quality(
        (block.text for block in corpus_blocks(files)),
        unit=unit,
        against=(lambda: (block.text for block in corpus_blocks(training))) if training else None,
        **scores,
    )


def _files(texts: Texts) -> list[Path]:
    """The files of texts; a table is the text in its column `text`."""
    return expand(utf8_files(named_texts(texts), column=TEXT))


def convert(
    model: str | Path,
    out: str | Path,
    *,
    to: str | None = None,
    side: str | None = None,
    quantise: str | int | None = None,
    layout: str | None = None,
) -> dict[str, Any]:
    """Write a model in the format that the name `out` implies; return a summary.

    An n-gram run becomes an .arpa or .arpa.gz file; an ARPA file becomes another, or a run folder;
    a model with word vectors becomes a .vec file of them, those of `side` if source and target have
    their own; other tasks have their own formats (`elman convert --help`). `to="hf"` writes a
    folder for Hugging Face's transformers. `layout="compact"` writes an n-gram run of packed bits,
    `quantise=8` one of numbers of 8 bits, and `quantise="int8"` a network with weights of one byte.
    """
    bits = None if quantise is None else str(quantise)
    return convert_model(str(model), str(out), to=to, side=side, quantise=bits, layout=layout)


def train_model(
    task: str,
    data: Texts = (),
    *,
    valid: Texts = (),
    test: Texts = (),
    out: str | Path | None = None,
    overwrite: bool = False,
    encoding: str | None = None,
    recipe: str | None = None,
    minutes: float | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    seed: int | None = None,
    device: str = "auto",
    settings: Mapping[str, Any] | None = None,
    progress: bool | None = None,
    on_report: Callable[[Report], None] | None = None,
    on_note: Callable[[str], None] | None = None,
    **options: Any,
) -> Any:
    """Train a model of a task, given by name or as "package.module:NAME", and open it.

    Returns what `load` returns for the task. Without `data` the task's built-in corpus is used. A
    language model also takes any iterable that is no list of files: of texts, or of rows with a
    `column` of texts, such as a dataset of Hugging Face (texts in a list: `iter(texts)`). The run
    folder is `out`, or a new one under runs/; with `overwrite`, a run in it is replaced.
    `encoding` is that of the text files, such as "latin-1", if it is not UTF-8. `settings` may be
    nested or have dotted names, such as {"model.hidden_size": 512}. Other keywords are options of
    `elman train TASK`, or settings of the model.

    Progress is shown on stderr, or as a bar in a notebook. With `on_report`, which is called with
    every report, or `on_note`, called with every note, it is shown only if `progress` is True.
    """
    started = time.monotonic()
    if is_outside(task):
        trust(task)
    if overwrite and out is None:
        raise UsageError("overwrite needs the run folder", "name it with out")
    _check_keywords(task_named(task), options)
    own, passed = task_named(task).divide(options)
    train_files, valid_files, test_files = texts_of(
        task_named(task), (data, valid, test), passed, encoding
    )
    if not train_files and not (isinstance(data, tuple) and data == ()):
        raise UsageError("the data is empty", "give some text; leave it out for a built-in corpus")
    resolved = resolve(
        task,
        train_files,
        valid=valid_files,
        test=test_files,
        recipe=recipe,
        settings=merge(nested(settings or {}), own),
        minutes=minutes,
        epochs=epochs,
        steps=steps,
        seed=seed,
        device=device,
    )
    config = resolved.config
    folder = Path(out) if out is not None else new_run_folder(task, config.data.train)
    if progress is None:
        progress = on_report is None and on_note is None
    with Progress() if progress else nullcontext() as shown:
        if shown is not None:
            shown.notes(resolved.notes)
        how: dict[str, Any] = {"device": device, "overwrite": overwrite, "started": started}
        for report in train(config, folder, **how, **passed):
            if shown is not None:
                shown.show(report)
            if on_report is not None:
                on_report(report)
            if on_note is not None and report.note:
                on_note(report.note)
            if report.kind == "stopped":
                raise KeyboardInterrupt(report.note)
    return load(folder, device=device)


def _check_keywords(task: Task, options: Iterable[str]) -> None:
    """Refuse a misspelt keyword of `train_model`, which would pass for a setting of the model."""
    shared = signature(train_model).parameters
    settings = {name.rpartition(".")[2] for name in settings_of(task)}
    known = {*shared, *settings, *(option.name for option in task.options)}
    for name in options:
        if name not in known and (found := closest(name, known)) in shared:
            raise UsageError(f"training has no keyword '{name}'", f"did you mean '{found}'?")


def __getattr__(name: str) -> Any:
    """`train_NAME` for each task: `train_model` with its first argument given."""
    task = name.removeprefix("train_")
    if task == name or task not in TASKS:
        raise AttributeError(f"module 'elman.api' has no attribute '{name}'")
    trainer = partial(train_model, task)
    update_wrapper(trainer, train_model)
    trainer.__name__ = name  # type: ignore[attr-defined]
    trainer.__signature__ = _signature(task)  # type: ignore[attr-defined]
    return trainer


def _signature(task: str) -> Signature:
    """The keywords of `train_NAME`: those of `train_model`, the options of the task, and the
    settings of its model."""
    _, *shared, others = signature(train_model).parameters.values()
    declared = task_named(task)
    model: Any = next(f.default_factory for f in fields(declared.config_class) if f.name == "model")
    hints = {o.name: o.type for o in declared.options if o.refusal is None and o.action is None}
    types = get_type_hints(model)
    hints = hints | {f.name: types[f.name] for f in fields(model) if f.name not in {"kind", *hints}}
    own = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=hint | None)
        for name, hint in hints.items()
        if name not in {parameter.name for parameter in shared}
    ]
    return Signature([*shared, *own, others], return_annotation=imported(declared.handle))
