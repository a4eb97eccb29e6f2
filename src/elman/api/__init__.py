"""The library's front door: open a model, and ask it everything that such a model can answer.

    lm = elman.load("runs/mine")                   or a mixture, "0.7*runs/a+0.3*runs/b"
    lm.perplexity(text)      lm.surprisal(text)    how surprising is a text?
    lm.next("students opened their", k=5)          what comes next?
    lm.generate("Once upon", max_tokens=80)        and then?

`load` hands back the handle of the run's task; `HANDLES` names them all.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, overload

from torch import nn

from elman.base.config import from_dict
from elman.base.errors import UsageError
from elman.base.tables import Table, look_up
from elman.batches.encoded import encode_files
from elman.evaluate.mixture_weights import MixtureFit, fit_weights
from elman.models.mixture import Mixture
from elman.ngrams.arpa_files import is_arpa
from elman.nn.quantise import quantise as quantise_weights
from elman.recipes.convert import convert as convert_model
from elman.recipes.resolve import resolve
from elman.recipes.run import train
from elman.runs.language_model import LM, Completion
from elman.runs.machine import machine
from elman.runs.new_folder import DEFAULT_CORPUS, new_run_folder
from elman.runs.run_folder import open_run
from elman.tasks.ngram import task as ngram
from elman.tasks.ngram.model import NgramLM, load_arpa
from elman.tasks.ngram.settings import NgramConfig
from elman.text.sources import Paths, expand, listed
from elman.tokens.tokenizer import TOKENIZER_FILE
from elman.tokens.tokenizer_config import TokenizerConfig
from elman.train.report import Report

__all__ = [
    "HANDLES",
    "LM",
    "Completion",
    "convert",
    "load",
    "mix",
    "new_run_folder",
    "train_lm",
    "train_model",
    "train_ngram",
]

HANDLES: Table = {
    "lm": "elman.runs.language_model:LM",
    "window": "elman.runs.language_model:LM",
    "maxent": "elman.runs.language_model:LM",
    "ngram": "elman.runs.language_model:LM",
    "snm": "elman.runs.language_model:LM",
    "translator": "elman.tasks.translation.handle:Translator",
    "tagger": "elman.tasks.tagging.handle:Tagger",
    "captioner": "elman.tasks.captioning.handle:Captioner",
    "conditional": "elman.tasks.conditional.handle:Conditional",
    "classifier": "elman.tasks.classification.handle:Classifier",
    "elmo": "elman.tasks.elmo.handle:Elmo",
}
"""What a run of each task is opened as: a class that takes a name and the opened `Run`."""

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
    """Open a run folder, an ARPA file, or a mixture written as `0.7*runs/a+0.3*runs/b`.

    What comes back depends on the run's task: a language model is an `LM`, a tagger a `Tagger`, and
    so on. With `kind`, anything else than that class is an error (and a type checker knows what
    comes back). `quantise="int8"` rounds the weights of a language model to one byte each: a little
    less exact, and on a CPU faster to generate with. `label` is what a language model that takes
    one is given.
    """
    if Path(model).exists() or not ({"*", "+"} & set(str(model))):
        handle = _open(model, device)
    else:
        handle = _mixture(str(model), device)
    if label is not None:
        if not hasattr(handle, "given"):
            raise UsageError(f"{model} is {handle.what}, which takes no label", "leave it out")
        handle = handle.given(label)
    if kind is LM and hasattr(handle, "given"):
        labels = ", ".join(handle.labels[:5]) + (", ..." if len(handle.labels) > 5 else "")
        raise UsageError(
            f"{model} is {handle.what}, and none was given", f"give it one with --label: {labels}"
        )
    if kind is not None and not isinstance(handle, kind):
        raise UsageError(
            f"{model} is {handle.what}, not {kind.what}", f"`elman info {model}` explains it"
        )
    if quantise is not None:
        _quantise(handle, quantise)
    return handle


def mix(
    models: Sequence[str | Path], tune: Paths, *, device: str = "auto"
) -> tuple[str, MixtureFit]:
    """The mixture of `models` that predicts the text `tune` best, as `load` opens it.

    The weights are fitted by expectation maximisation; beside the mixture's name stands how good
    it and each of the models are on that text.
    """
    names = [str(model) for model in models]
    if len(names) < 2:
        raise UsageError("a mixture needs two models or more", "name another model")
    for name in names:
        if {"*", "+"} & set(name):
            raise UsageError(
                f"'{name}' cannot be a part of a mixture: its name has a * or + in it",
                "give single models, each by a path without these signs",
            )
    parts = [load(name, device=device, kind=LM) for name in names]
    _check_mixable(parts)
    tokenizer = parts[0].tokenizer
    text = encode_files(expand(tune), tokenizer)
    fit = fit_weights([part.model for part in parts], text, boundary_id=tokenizer.boundary_id)
    fit = replace(fit, notes=tuple(f"{part.name}: {note}" for part in parts for note in part.notes))
    terms = zip(fit.weights, names, strict=True)
    return "+".join(f"{weight:.4g}*{name}" for weight, name in terms), fit


def _open(model: str | Path, device: str) -> Any:
    """A single model: a run folder or an ARPA file."""
    if is_arpa(Path(model)):
        ngrams, tokenizer, _ = load_arpa(Path(model))
        return LM(str(model), ngrams, tokenizer)
    run = open_run(model, machine(device).device)
    return look_up(HANDLES, run.config.task, "task").of_run(str(model), run)


def _mixture(model: str, device: str) -> LM:
    """Models of one tokenizer, each with its weight."""
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
    models = [part.model for part in (handle, *getattr(handle, "parts", ()))]
    networks = [model for model in models if isinstance(model, nn.Module)]
    if not networks:
        raise UsageError(f"{handle.name} has no weights to quantise", "leave --quantise out")
    for network in networks:
        quantise_weights(network, kind)


def _check_mixable(parts: Sequence[LM]) -> None:
    """Models mix where they give probabilities, and ids mean the same in all of them."""
    for part in parts:
        ngrams = part.model.ngrams if isinstance(part.model, NgramLM) else None
        if ngrams is not None and not ngrams.about.get("normalised", True):
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
            f"train one of them with --set tokenizer.file={Path(first.name) / TOKENIZER_FILE}"
            if arpa is None
            else f"train the other with the tokenizer of {arpa}: `elman convert {arpa} DIR`, "
            f"then --set tokenizer.file=DIR/{TOKENIZER_FILE}",
        )


def train_lm(
    data: Paths = DEFAULT_CORPUS,
    *,
    valid: Paths = (),
    test: Paths = (),
    recipe: str | None = None,
    out: str | Path | None = None,
    minutes: float | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    seed: int | None = None,
    device: str = "auto",
    settings: Mapping[str, Any] | None = None,
    on_report: Callable[[Report], None] | None = None,
) -> LM:
    """Train a recurrent language model on text files, and open it.

    `settings` are single values by their dotted names, such as {"model.hidden_size": 512}. The run
    folder is `out`, or a new one under runs/. `on_report` is called with every report of the run.
    """
    trained: LM = train_model(
        "lm",
        data,
        valid=valid,
        test=test,
        recipe=recipe,
        out=out,
        minutes=minutes,
        epochs=epochs,
        steps=steps,
        seed=seed,
        device=device,
        settings=settings,
        on_report=on_report,
    )
    return trained


def train_ngram(
    data: Paths = DEFAULT_CORPUS,
    *,
    valid: Paths = (),
    test: Paths = (),
    out: str | Path | None = None,
    arpa: str | Path | None = None,
    memory: str | int | None = None,
    settings: Mapping[str, Any] | None = None,
    on_note: Callable[[str], None] | None = None,
    **model: Any,
) -> LM:
    """Make an n-gram model of text files by counting, and open it.

    `model` are the settings of `NgramConfig`: order, smoothing, prune, vocabulary and others.
    `settings` are single values by their dotted names, such as {"tokenizer.kind": "char"}. The run
    folder is `out`, or a new one under runs/; `arpa` is a file to write the model to as well.
    Counting goes to disk beyond `memory`, in bytes or as in "2G". `on_note` hears what is going on.
    """
    asked = ngram.counting_settings(_assignments(settings))
    texts = listed(data)
    folder = Path(out) if out is not None else new_run_folder("ngram", texts)
    ngram.train_ngram(
        texts,
        folder,
        valid=listed(valid),
        test=listed(test),
        model=from_dict(NgramConfig, asked["model"] | model, "model"),
        tokenizer=from_dict(TokenizerConfig, asked["tokenizer"], "tokenizer"),
        arpa=None if arpa is None else Path(arpa),
        memory=ngram.memory_size(memory) if isinstance(memory, str) else memory,
        note=on_note or (lambda text: None),
    )
    return load(folder, kind=LM)


def convert(model: str | Path, out: str | Path) -> dict[str, Any]:
    """Write a model in another form, which the name `out` says; return what was written.

    An n-gram run becomes an .arpa or .arpa.gz file; an ARPA file becomes another, or a run folder;
    an ELMo run becomes a folder with options.json and lm_weights.hdf5.
    """
    return convert_model(str(model), str(out))


def train_model(
    task: str,
    data: Paths,
    *,
    valid: Paths = (),
    test: Paths = (),
    out: str | Path | None = None,
    device: str = "auto",
    settings: Mapping[str, Any] | None = None,
    on_report: Callable[[Report], None] | None = None,
    **options: Any,
) -> Any:
    """Train a model of any task (lm, tagger, classifier and so on), and open it.

    What comes back is what `load` gives for the task. `options` are the other ones of `train_lm`: a
    recipe, the length of the run, a seed.
    """
    started = time.monotonic()
    texts = listed(data)
    resolved = resolve(
        task,
        texts,
        valid=listed(valid),
        test=listed(test),
        overrides=_assignments(settings),
        device=device,
        **options,
    )
    folder = Path(out) if out is not None else new_run_folder(task, texts)
    for report in train(resolved.config, folder, device=device, started=started):
        if on_report is not None:
            on_report(report)
        if report.kind == "stopped":
            raise KeyboardInterrupt(report.note)
    return load(folder, device=device)


def _assignments(settings: Mapping[str, Any] | None) -> list[str]:
    """Settings by their dotted names, as the command line has them."""
    return [
        f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in (settings or {}).items()
    ]
