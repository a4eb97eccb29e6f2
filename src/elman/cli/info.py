"""`elman info`: what a model is."""

from __future__ import annotations

from dataclasses import asdict
from math import exp
from pathlib import Path
from typing import Annotated, Any

from elman.base.config import from_dict, to_dict
from elman.base.counting import counted
from elman.base.errors import ElmanError, UsageError
from elman.base.origins import origin
from elman.base.tables import imported
from elman.runs.packaged import located
from elman.tasks import task_named
from elman.terminal.console import (
    duration,
    figure,
    number,
    result,
    result_json,
    size,
    spoken,
    table,
    talk_notes,
)
from elman.terminal.options import Device, Json, Model, option, picture
from elman.train.report import NOT_RECURRENT

ALWAYS = {"cell", "num_layers", "hidden_size", "embedding_size", "window_size", "tied"} | {
    *("attention", "order", "smoothing"),
}
"""Settings of a model that are shown even if they are the defaults."""


def info(
    model: Model,
    held_out: Annotated[
        list[str] | None,
        option(
            "FILE",
            "N-gram models: the share of this text's n-grams that the model lacks; may be "
            "repeated.",
        ),
    ] = None,
    plot: Annotated[
        Path | None, picture("Draw the learnt weights of the embeddings' layers")
    ] = None,
    verify: Annotated[
        bool,
        option(None, "Read every file of a run folder, and compare it with its checksums."),
    ] = False,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Describe a model: parts, kernels, training, results."""
    if verify:
        for name, given in (("--held-out", held_out), ("--plot", plot)):
            if given:
                raise UsageError(f"{name} has no effect with --verify", f"drop {name}")
        _verify(located(model), json)
        return
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


def _verify(path: Path, json: bool) -> None:
    """Print a line per file; raise an error at the end if one is damaged."""
    from elman.tasks.verifying import verify_run

    damaged, unchecked = [], False
    for found in verify_run(path):
        if found.state == "damaged":
            damaged.append(found.file)
        unchecked |= found.state == "unchecked"
        if json:
            result_json(asdict(found))
        else:
            name = "all files together" if found.file == "." else found.file
            result(f"{found.state:9}  {name}{f': {found.problem}' if found.problem else ''}")
    if unchecked:
        what = "it can be read, but nothing was recorded to compare it with"
        talk_notes([f"unchecked: {what} (a file of yours, or of an earlier version)"])
    if damaged:
        raise ElmanError(
            f"{path} is damaged", "restore the files from a copy, or train the model again"
        )


def _draw(about: dict[str, Any], path: Path) -> None:
    from elman.evaluate.pictures import draw_layer_weights

    found = about.get("layer_weights")
    if not found:
        raise UsageError(
            f"{about['name']} has no mix of layers to draw",
            "train a model with --embeddings first",
        )
    draw_layer_weights({place: [mix["weights"]] for place, mix in found.items()}, path)


def _language_model(about: dict[str, Any]) -> str:
    tokenizer = about["tokenizer"]
    is_onnx = about["kind"] == "onnx"
    what = "a language model in ONNX" if is_onnx else f"a {about['kind']} language model"
    if "task" in about and (task := task_named(about["task"])).fit is not None:
        what = task.what
    return f"{what} over {tokenizer['vocab_size']:,} tokens ({tokenizer['kind']})"


def _rows(part: dict[str, Any]) -> list[tuple[str, str]]:
    from elman.runs.card import told_change, told_weights

    if "task" not in part:  # a file of another format
        return [(name, str(value)) for name, value in part["details"].items()]
    task = task_named(part["task"])
    rows: list[tuple[str, str]] = []
    if "model" in part:  # an ARPA file has no settings
        settings = part["model"]
        default: Any = from_dict(task.config_class, {"model": {"kind": settings["kind"]}})
        usual = to_dict(default.model)
        rows += [
            (name, _setting(value, usual[name]))
            for name, value in settings.items()
            if name in ALWAYS or value != usual[name]
        ]
    if task.info_rows is not None:
        return [*rows, *imported(task.info_rows)(part)]
    rows.append(("parameters", number(part["parameters"])))
    rows += [(f"  {name}", number(count)) for name, count in part["parameters_by_part"].items()]
    trained = (part["summary"] or {}).get("kernels", {})
    rows += [(f"kernel of {name}, in training", plan) for name, plan in trained.items()]
    rows += [
        (f"kernel of {name}", f"{plan} (on {part['device']})")
        for name, plan in part["plans"].items()
    ]
    rows += [
        (f"kernel of {name}, generating", plan) for name, plan in part.get("generation", {}).items()
    ]
    if not (trained or part["plans"]):
        rows.append(("kernels", NOT_RECURRENT))
    rows += [
        (f"layers of the embeddings, at the {place}", told_weights(found))
        for place, found in part["layer_weights"].items()
    ]
    rows.append(("size on disk", size(part["bytes"])))
    if files := part["data"]["train"]:
        lines = ", each line by itself" if part["data"].get("unit") == "line" else ""
        rows.append(("trained on", ", ".join(map(origin, files)) + lines))
    if start := part.get("start"):
        rows.append(("weights at the start", f"those of {start}"))
    rows.append(("recipe", part["recipe"]))
    if summary := part["summary"]:
        amount = f"{counted(summary['steps'], 'update')}, {summary['tokens']:,} tokens"
        rows.append(("training", f"{amount}, {duration(summary['seconds'])}"))
        if earlier := summary.get("earlier"):
            rows.append((f"validation text of {earlier['run']}", told_change(earlier)))
    if part["validation"]:
        rows.append(("validation", _history(part)))
    found = {
        key.removeprefix("test_"): value
        for key, value in (summary or {}).items()
        if key.startswith("test_") and isinstance(value, float)
    }
    return rows + ([("test", _figures(found))] if found else [])


def _figures(found: dict[str, Any]) -> str:
    parts = [
        f"{spoken(name)} {figure(name, value)}"
        for name, value in found.items()
        if name not in ("nats_per_token", "bits_per_byte", "num_tokens") and value is not None
    ]
    if found.get("bits_per_byte") is not None:
        parts.append(f"{found['bits_per_byte']:.4f} bits per byte")
    return ", ".join(parts)


def _setting(value: Any, usual: Any) -> str:
    """A setting in words; of a group, those that differ from the `usual` ones."""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    if not isinstance(value, dict):
        return str(value)
    if isinstance(usual, dict) and value.get("kind") == usual.get("kind"):
        value = {k: v for k, v in value.items() if k in ALWAYS or v != usual[k]}
    return " ".join(f"{k} {v}" for k, v in value.items())


def _history(part: dict[str, Any]) -> str:
    """The best validation, and the course of the figure that selects the model."""
    best = dict(part["validation"])
    found = best.pop("metrics", {})
    if best["nats_per_token"] is not None:
        found = {**found, "perplexity": exp(best["nats_per_token"])}
    name = next(iter(found))
    course = [r.get(f"valid_{name}") for r in part["history"]]
    figures = [
        f"{v:.4g}" if name == "perplexity" else figure(name, v) for v in course if v is not None
    ]
    if len(figures) > 8:
        figures = [*figures[:4], "...", *figures[-3:]]
    line = _figures({**found, "bits_per_byte": best["bits_per_byte"]})
    course_of_it = f" ({', '.join(figures)})" if figures else ""
    return f"{line}, after step {part['step']:,}{course_of_it}"
