"""What every `elman train` of a network does with its options: resolve, train, sum up."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from json import dumps as json_text
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from elman.base.errors import UsageError
from elman.cli.console import duration, figure, number, result, result_json, spoken, table, talk

if TYPE_CHECKING:
    from elman.recipes.resolve import Resolved

COUNTS = ("valid_tokens", "steps", "best_step", "tokens", "test_tokens", "test_oov", "seconds")
"""Entries of a summary that say how much, not how good."""
QUIET = ("nats_per_token",)
"""Figures that stay in the JSON: they say what another figure says."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """The options of a training command."""

    task: str
    data: Sequence[str]
    valid: Sequence[str]
    test: Sequence[str]
    recipe: str | None
    out: Path | None
    length: dict[str, Any]
    settings: Sequence[str]
    device: str
    seed: int | None
    resume: bool
    started: float = field(default_factory=time.monotonic)
    """The clock when the command began: minutes count from there."""

    def run(self, json: bool) -> None:
        """Train as asked, and print the summary."""
        summary = self.trained()
        if json:
            result_json(summary)
        else:
            result(table(_rows(summary)))

    def trained(self) -> dict[str, Any]:
        """Train as asked, talking about it; the summary."""
        from elman.cli.progress import show
        from elman.recipes.new_folder import new_run_folder
        from elman.recipes.run import train as run

        resolved = self._resolved()
        folder = self.out or new_run_folder(self.task, self.data)
        for note in resolved.notes:
            talk(f"· {note}")
        last = show(
            run(
                resolved.config,
                folder,
                device=self.device,
                resume=self.resume,
                started=self.started,
            )
        )
        if last.summary is None:  # a signal stopped it, and it was saved
            raise typer.Exit(130)
        return last.summary

    def _resolved(self) -> Resolved:
        from elman.recipes.resolve import resolve, resolve_resumed

        texts = {"train": self.data, "valid": self.valid, "test": self.test}
        if not self.resume:
            return resolve(
                self.task,
                self.data,
                valid=self.valid,
                test=self.test,
                recipe=self.recipe,
                overrides=self.settings,
                seed=self.seed,
                device=self.device,
                **self.length,
            )
        if self.out is None:
            raise UsageError("--resume needs the run folder", "name it with --out")
        # What is repeated on the command line must be what the run began with: the runner compares.
        overrides = [f"data.{name}={_absolute(paths)}" for name, paths in texts.items() if paths]
        overrides.append(f'task="{self.task}"')
        overrides += [f'recipe="{self.recipe}"'] if self.recipe is not None else []
        overrides += [f"training.seed={self.seed}"] if self.seed is not None else []
        return resolve_resumed(self.out, overrides=[*self.settings, *overrides], **self.length)


def _rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """The summary for people: how good, how much, where."""
    rows = []
    for prefix, name in (("", "validation"), ("test_", "test")):
        for key, value in summary.items():
            if key.startswith("test_") != bool(prefix) or key in COUNTS:
                continue
            quantity = key.removeprefix(prefix)
            if isinstance(value, float) and quantity not in (*QUIET, "tokens_per_second"):
                rows.append((f"{name} {spoken(quantity)}", figure(quantity, value)))
    return [
        *rows,
        ("updates", number(summary["steps"])),
        ("tokens read", number(summary["tokens"])),
        ("tokens per second", number(round(summary["tokens_per_second"]))),
        ("time", duration(summary["seconds"])),
        ("run folder", summary["out"]),
    ]


def _absolute(paths: Sequence[str]) -> str:
    """Paths as the configuration has them, written as a TOML list."""
    found = [Path(path).expanduser() for path in paths]
    names = [
        str(p.resolve()) if p.exists() else str(given)
        for p, given in zip(found, paths, strict=True)
    ]
    return json_text(names, ensure_ascii=False)
