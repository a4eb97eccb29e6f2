"""Fit models by counting, for tests: texts in, the summary out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from elman.recipes.resolve import resolve
from elman.recipes.run import train


def fit_counts(
    task: str,
    data: Sequence[str],
    out: Path,
    *,
    valid: Sequence[str] = (),
    test: Sequence[str] = (),
    valid_fraction: float | None = None,
    model: dict[str, Any] | None = None,
    tokenizer: dict[str, Any] | None = None,
    note: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> dict[str, Any]:
    """Resolve and run a counted task; return the summary."""
    settings = {"model": model or {}, "tokenizer": tokenizer or {}}
    if valid_fraction is not None:
        settings["data"] = {"valid_fraction": valid_fraction}
    config = resolve(task, data, valid=valid, test=test, settings=settings).config
    summary: dict[str, Any] | None = None
    for report in train(config, out, **options):
        if report.note:
            note(report.note)
        summary = report.summary or summary
    assert summary is not None
    return summary
