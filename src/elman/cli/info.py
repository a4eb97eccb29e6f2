"""`elman info`: what a model is."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from elman.base.config import describe, to_dict
from elman.base.counting import counted
from elman.base.errors import UsageError
from elman.base.tables import look_up
from elman.tasks import Task, task_named
from elman.terminal.console import (
    duration,
    figure,
    number,
    result,
    result_json,
    size,
    spoken,
    table,
)
from elman.terminal.options import Device, Json, Model

ALWAYS = (
    "cell",
    "num_layers",
    "hidden_size",
    "embedding_size",
    "window_size",
    "tied",
    "attention",
    "order",
    "smoothing",
)
"""Settings of a model that are shown even where they are the usual ones."""


def info(
    model: Model,
    held_out: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="N-gram models: which share of this text's n-grams the model does not list; may "
            "be repeated.",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Draw what a task model has learnt of its embeddings' layers (.png, .svg, .pdf).",
        ),
    ] = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Explain a model.

    Its parts, the kernel of each layer, its tokenizer, how it was trained and how good it is.
    """
    from elman.api import LM, load

    handle = load(model, device=device, kind=LM) if held_out else load(model, device=device)
    about = handle.info()
    if held_out:
        if not hasattr(handle, "unseen"):
            raise UsageError(
                f"{model} lists no n-grams", "--held-out is for n-gram models and ARPA files"
            )
        about["held_out"] = handle.unseen(held_out)
    if plot is not None:
        _draw(about, plot)
    if json:
        result_json(about)
        return
    result(f"{about['name']}: {about['what'] if 'what' in about else _language_model(about)}")
    for part in about.get("parts", [about]):
        result("")
        if "weight" in part:
            result(f"{part['weight']:.4g} * {part['path']}")
        result(table(_rows(part)))


def _draw(about: dict[str, Any], path: Path) -> None:
    from elman.evaluate.pictures import draw_layer_weights

    found = about.get("layer_weights")
    if not found:
        raise UsageError(
            f"{about['name']} has no mix of layers to draw",
            "train a task model with --embeddings first",
        )
    draw_layer_weights({place: [mix["weights"]] for place, mix in found.items()}, path)


def _language_model(about: dict[str, Any]) -> str:
    tokenizer = about["tokenizer"]
    task = task_named(about["task"]) if "task" in about else None
    what = f"a {about['kind']} language model"
    if task is not None and task.fit is not None:
        what = task.what
    vocabulary = f"{tokenizer['vocab_size']:,} tokens ({tokenizer['kind']})"
    return f"{what} over {vocabulary}"


def _rows(part: dict[str, Any]) -> list[tuple[str, str]]:
    from elman.runs.card import told_weights

    task = task_named(part["task"])
    if "model" not in part:  # an ARPA file says no more about itself
        own: list[tuple[str, str]] = task.part("info_rows")(part)
        return own
    settings = part["model"]
    usual = {s.name: to_dict(s.default) for s in describe(_model_class(task, settings["kind"]))}
    rows = [
        (name, _setting(_told(value, usual[name])))
        for name, value in settings.items()
        if name in ALWAYS or value != usual[name]
    ]
    if task.info_rows is not None:
        return [*rows, *task.part("info_rows")(part)]
    rows.append(("parameters", number(part["parameters"])))
    rows += [(f"  {name}", number(count)) for name, count in part["parameters_by_part"].items()]
    rows += [
        (f"kernel of {name}", f"{plan} (on {part['device']})")
        for name, plan in part["plans"].items()
    ]
    rows += [
        (f"kernel of {name}, generating", plan) for name, plan in part.get("generation", {}).items()
    ]
    rows += [
        (f"layers of the embeddings, at the {place}", told_weights(found))
        for place, found in part["layer_weights"].items()
    ]
    rows += [
        ("size on disk", size(part["bytes"])),
        *([("trained on", ", ".join(part["data"]["train"]))] if part["data"]["train"] else []),
        ("recipe", part["recipe"]),
    ]
    if part["summary"]:
        summary = part["summary"]
        rows.append(
            (
                "training",
                f"{counted(summary['steps'], 'update')}, {summary['tokens']:,} tokens, "
                f"{duration(summary['seconds'])}",
            )
        )
    rows += [("validation", _history(part))] if part["validation"] else []
    found = {
        key.removeprefix("test_"): value
        for key, value in (part["summary"] or {}).items()
        if key.startswith("test_") and isinstance(value, float)
    }
    rows += [("test", _figures(found))] if found else []
    return rows


def _model_class(task: Task, kind: str) -> type[Any]:
    """The config class of a task's model of this kind."""
    found = next(f for f in fields(task.config_class) if f.name == "model")
    if table := found.metadata.get("table"):
        chosen: type[Any] = look_up(table, kind, "model")
        return chosen
    hint: type[Any] = get_type_hints(task.config_class)["model"]
    return hint


def _figures(found: dict[str, Any]) -> str:
    """Figures in a line; what is per byte says so after its number."""
    parts = [
        f"{spoken(name)} {figure(name, value)}"
        for name, value in found.items()
        if name not in ("nats_per_token", "bits_per_byte", "num_tokens") and value is not None
    ]
    if found.get("bits_per_byte") is not None:
        parts.append(f"{found['bits_per_byte']:.4f} bits per byte")
    return ", ".join(parts)


def _told(value: Any, usual: Any) -> Any:
    """Of a group of settings those that are worth telling."""
    if not isinstance(value, dict) or not isinstance(usual, dict):
        return value
    same = value.get("kind") == usual.get("kind")
    return {k: v for k, v in value.items() if not same or k in ALWAYS or v != usual[k]}


def _setting(value: Any) -> str:
    return " ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else str(value)


def _history(part: dict[str, Any]) -> str:
    """The best validation, and the way to it by the figure that decides."""
    from math import exp

    best = dict(part["validation"])
    found = best.pop("metrics", {})
    if best["nats_per_token"] is not None:
        found = {**found, "perplexity": exp(best["nats_per_token"])}
    name = next(iter(found))
    way = [r.get(f"valid_{name}") for r in part["history"]]
    figures = [
        f"{v:.4g}" if name == "perplexity" else figure(name, v) for v in way if v is not None
    ]
    if len(figures) > 8:
        figures = [*figures[:4], "...", *figures[-3:]]
    line = _figures({**found, "bits_per_byte": best["bits_per_byte"]})
    return f"{line}, after step {part['step']:,} ({', '.join(figures)})"
