"""What a run folder says about itself, as plain values: `elman info`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from elman.base.config import to_dict
from elman.base.files import read_json_lines
from elman.models.embeddings import layer_weights
from elman.nn.layer import executed_plans
from elman.recipes import ngram, snm
from elman.recipes.embeddings import FOLDER
from elman.recipes.run_folder import CARD_FILE, CONFIG_FILE, Run
from elman.train.loop import METRICS_FILE

TALK = (METRICS_FILE, CARD_FILE, CONFIG_FILE)
"""Files of a run folder that tell about the model; the others are the model."""


def describe_run(run: Run) -> dict[str, Any]:
    """What one run folder says about itself."""
    if run.config.model.kind == "ngram":
        return _describe_ngrams(run)
    if run.config.model.kind == "snm":
        return _describe_matrix(run)
    device = next(run.model.parameters()).device
    training = run.config.training
    plans = executed_plans(run.model, training.batch_size, training.chunk_length)
    reports = _reports(run.path / METRICS_FILE)
    done = next((r["summary"] for r in reversed(reports) if r.get("summary")), None)
    counted: set[int] = set()
    parts: dict[str, int] = {}
    for name, child in run.model.named_children():
        own = [p for p in child.parameters() if id(p) not in counted]
        counted.update(map(id, own))
        if own:
            parts[name] = sum(p.numel() for p in own)
    return {
        "path": str(run.path),
        "model": to_dict(run.config.model),
        "parameters": sum(parts.values()),
        "parameters_by_part": parts,
        "kernels": {name: executed.partition(":")[0] for name, executed in plans.items()},
        "plans": plans,
        "layer_weights": layer_weights(run.model),
        "device": str(device),
        "bytes": sum(
            f.stat().st_size
            for folder in (run.path, run.path / FOLDER)
            if folder.is_dir()
            for f in folder.iterdir()
            if f.is_file() and f.name not in TALK
        ),
        "recipe": run.config.recipe,
        "data": to_dict(run.config.data),
        "step": run.header.get("step"),
        "validation": run.header.get("validation"),
        "summary": done,
        "history": [_validation(r) for r in reports if r.get("kind") == "valid"],
    }


def _validation(report: dict[str, Any]) -> dict[str, Any]:
    """When a validation was, and what it found; of a loss and its perplexity, the latter."""
    when = {key: report.get(key) for key in ("step", "tokens", "seconds")}
    found = {key: value for key, value in report.items() if key.startswith("valid_")}
    return when | {k: v for k, v in found.items() if k not in ("valid_loss", "valid_bits_per_byte")}


def _describe_ngrams(run: Run) -> dict[str, Any]:
    about = ngram.info(run.path)
    settings = to_dict(run.config.model)
    if "source" in about:  # converted from a file that says no more about itself
        settings = {name: settings[name] for name in ("kind", "order")}
    return {
        "path": str(run.path),
        "model": settings,
        "recipe": run.config.recipe,
        "data": to_dict(run.config.data),
        "bytes": about["bytes"],
        "summary": about["summary"],
        "ngrams": about["by_order"],
        "unseen": about["unseen"],
        "notes": about.get("notes", []),
    }


def _describe_matrix(run: Run) -> dict[str, Any]:
    about = snm.info(run.path)
    return {
        "path": str(run.path),
        "model": to_dict(run.config.model),
        "recipe": run.config.recipe,
        "data": to_dict(run.config.data),
        "bytes": about["bytes"],
        "summary": about["summary"],
        "contexts": about["by_template"],
        "notes": [],
    }


def _reports(path: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl; a last line that is still being written is left out."""
    return read_json_lines(path) if path.is_file() else []
