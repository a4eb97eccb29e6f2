"""`elman info`: what a model is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from elman.base.config import describe, to_dict
from elman.base.counting import counted
from elman.base.errors import UsageError
from elman.base.tables import look_up
from elman.models import MODELS
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
    kind = {"ngram": "an n-gram", "snm": "a sparse matrix"}.get(about["kind"], f"a {about['kind']}")
    vocabulary = f"{tokenizer['vocab_size']:,} tokens ({tokenizer['kind']})"
    return f"{kind} language model over {vocabulary}"


def _rows(part: dict[str, Any]) -> list[tuple[str, str]]:
    from elman.runs.card import told_weights

    if "model" not in part:  # an ARPA file says no more about itself
        return [*_growth(part), *_notes(part)]
    settings = part["model"]
    usual = {
        s.name: to_dict(s.default) for s in describe(look_up(MODELS, settings["kind"], "model"))
    }
    rows = [
        (name, _setting(_told(value, usual[name])))
        for name, value in settings.items()
        if name in ALWAYS or value != usual[name]
    ]
    if settings["kind"] in ("ngram", "snm"):
        return rows + _counted_rows(part)
    rows.append(("parameters", number(part["parameters"])))
    rows += [(f"  {name}", number(count)) for name, count in part["parameters_by_part"].items()]
    rows += [
        (f"kernel of {name}", f"{kernel} (on {part['device']})")
        for name, kernel in part["kernels"].items()
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


def _counted_rows(part: dict[str, Any]) -> list[tuple[str, str]]:
    """The lecture's two problems in figures: storage grows with n, and so does what is unseen."""
    rows = _growth(part) if "ngrams" in part else _contexts(part)
    summary = part["summary"]
    rows.append(("size on disk", size(part["bytes"])))
    if "source" in summary:
        rows.append(("converted from", summary["source"]))
    else:
        rows += [
            ("counted", ", ".join(part["data"]["train"])),
            ("training", f"{summary['tokens']:,} tokens, {duration(summary['seconds'])}"),
        ]
    for prefix, name in (("", "validation"), ("test_", "test")):
        if summary.get(f"{prefix}perplexity") is not None:
            bits = summary[f"{prefix}bits_per_byte"]
            perplexity = number(summary[f"{prefix}perplexity"])
            rows.append((name, f"perplexity {perplexity}, {bits:.4f} bits per byte"))
    return rows + _notes(part)


def _notes(part: dict[str, Any]) -> list[tuple[str, str]]:
    return [("note", note) for note in part["notes"]]


def _growth(part: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [
        (f"{row['order']}-grams", f"{row['ngrams']:,}, {size(row['bytes'])} up to here")
        for row in part["ngrams"]
    ]
    rows += _unseen("in the validation text, never seen in training", part.get("unseen"))
    return rows + _unseen("in the held-out text, not listed in the model", part.get("held_out"))


def _unseen(what: str, found: list[dict[str, Any]] | None) -> list[tuple[str, str]]:
    """A line that says what is measured, and one for each order; those of one token come first."""
    if not found:
        return []
    rows = [(what, f"of {found[0]['ngrams']:,} tokens")]
    for row in found:
        text = f"{row['unseen_ngrams']:.1%} of {row['ngrams']:,}"
        if row["order"] > 1:
            text += f", and {row['unseen_contexts']:.1%} of their contexts"
        rows.append((f"  {row['order']}-grams", text))
    return rows


def _contexts(part: dict[str, Any]) -> list[tuple[str, str]]:
    """The kinds of contexts: each word of one is a w, each that is skipped an underscore."""
    return [
        (
            " ".join(["w"] * row["remote"] + ["_"] * row["skip"] + ["w"] * row["adjacent"] + ["?"]),
            f"{row['contexts']:,} contexts, {row['entries']:,} entries, weight {row['weight']:.3f}",
        )
        for row in part["contexts"]
    ]


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
