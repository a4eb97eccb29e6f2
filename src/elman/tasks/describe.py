"""Describe a run, for `elman info`."""

from __future__ import annotations

from typing import Any

from elman.base.config import to_dict
from elman.base.documents import read_json_lines
from elman.base.tables import imported
from elman.models.embeddings import layer_weights
from elman.nn.stack import executed_plans
from elman.runs.run_folder import CARD_FILE, CONFIG_FILE, EMBEDDINGS_FOLDER, METRICS_FILE
from elman.tasks import task_named
from elman.tasks.opening import OpenedRun
from elman.tokens.tokenizer import Tokenizer

SENTENCE_LENGTH = 32
"""Sequence length for finding the kernels of a task that reads sentences."""
NOT_MODEL = (METRICS_FILE, CARD_FILE, CONFIG_FILE)
"""Files of a run folder that are not part of the model's size."""


def describe_run(run: OpenedRun) -> dict[str, Any]:
    """Describe a run as plain values; a task may have its own."""
    task = task_named(run.config.task)
    describe = describe_network if task.describe is None else imported(task.describe)
    return {"task": run.config.task, **describe(run)}


def describe_network(run: OpenedRun) -> dict[str, Any]:
    """Values of a run of the training loop: parts, kernels, training, figures."""
    device = next(run.model.parameters()).device
    reports = read_json_lines(run.path / METRICS_FILE, missing_ok=True)
    done = next((r["summary"] for r in reversed(reports) if r.get("summary")), None)
    # Run every layer once, at the size of a training batch, to report executed kernels.
    length = getattr(run.config.training, "chunk_length", SENTENCE_LENGTH)
    plans = executed_plans(run.model, run.config.training.batch_size, length)
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
        "kernels": {name: plan.partition(": ")[0] for name, plan in plans.items()},
        "plans": plans,
        "layer_weights": layer_weights(run.model),
        "device": str(device),
        "bytes": sum(
            f.stat().st_size
            for folder in (run.path, run.path / EMBEDDINGS_FOLDER)
            if folder.is_dir()
            for f in folder.iterdir()
            if f.is_file() and f.name not in NOT_MODEL
        ),
        "start": getattr(run.config.training, "start", ""),
        "recipe": run.config.recipe,
        "data": to_dict(run.config.data),
        "step": run.header.get("step"),
        "validation": run.header.get("validation"),
        "summary": done,
        "history": [_validation(r) for r in reports if r.get("kind") == "valid"],
    }


def describe_tokenizer(tokenizer: Tokenizer) -> dict[str, Any]:
    return {name: getattr(tokenizer, name) for name in ("kind", "vocab_size", "hash")}


def _validation(report: dict[str, Any]) -> dict[str, Any]:
    """The time and figures of a validation."""
    when = {key: report.get(key) for key in ("step", "tokens", "seconds")}
    found = {key: value for key, value in report.items() if key.startswith("valid_")}
    return when | {k: v for k, v in found.items() if k not in ("valid_loss", "valid_bits_per_byte")}
