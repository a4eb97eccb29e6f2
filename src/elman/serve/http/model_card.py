"""What /v1/models tells about a model: its kind, size, training text, figures and a sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from elman.base.config import to_dict
from elman.base.documents import read_json_lines
from elman.base.errors import ElmanError
from elman.base.origins import origin
from elman.runs.card import FIGURES
from elman.runs.run_folder import METRICS_FILE
from elman.serve.http import schema
from elman.tasks.opening import OpenedRun

MAX_SAMPLE = 400
"""Characters of a sample."""


def model_card(handle: Any) -> schema.ModelCard:
    """Describe the model of a handle, with what is known of its run."""
    runs: list[OpenedRun] = [run for run in _runs(handle) if run is not None]
    run = runs[0] if len(runs) == 1 else None
    reports = [] if run is None else _reports(run.path)
    summary: dict[str, Any] = next(
        (r["summary"] for r in reversed(reports) if r.get("summary")), {}
    )
    sample = next((r["sample"] for r in reversed(reports) if r.get("sample")), None)
    model = getattr(handle, "model", None)
    return schema.ModelCard(
        what=getattr(handle, "what", "a model"),
        settings={} if run is None else _settings(run),
        parameters=sum(p.numel() for p in model.parameters())
        if isinstance(model, nn.Module)
        else None,
        trained_on=[*dict.fromkeys(name for one in runs for name in _texts(one))],
        figures={
            name: float(summary[name])
            for name in FIGURES
            if isinstance(summary.get(name), (int, float))
        },
        labels=list(getattr(handle, "tags", getattr(handle, "labels", ()))),
        sample=sample[:MAX_SAMPLE] if sample else None,
    )


def _runs(handle: Any) -> list[Any]:
    return list(getattr(handle, "runs", ())) or [getattr(handle, "run", None)]


def _reports(path: Path) -> list[dict[str, Any]]:
    try:
        return read_json_lines(path / METRICS_FILE)
    except (ElmanError, OSError):
        return []  # a model without its reports is a model all the same


def _texts(run: OpenedRun) -> list[str]:
    """Names only: clients must not see the paths."""
    return [Path(origin(path)).name for path in getattr(run.config.data, "train", ())]


def _settings(run: OpenedRun) -> dict[str, Any]:
    """The simple settings of the model, those of its decoder included."""
    found = to_dict(run.config.model)
    nested = found.get("decoder") or found.get("encoder") or {}
    return {
        name: value
        for name, value in {**nested, **found}.items()
        if isinstance(value, (str, int, float, bool))
    }
