"""What every `elman train` of a network does with its options: resolve, train, sum up."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from json import dumps as json_text
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from elman.base.errors import UsageError
from elman.terminal.console import (
    duration,
    figure,
    number,
    result,
    result_json,
    spoken,
    table,
    talk,
)
from elman.terminal.options import (
    Device,
    Epochs,
    Json,
    Minutes,
    Out,
    Recipe,
    Resume,
    Seed,
    Settings,
    Steps,
    option_parameters,
    place_options,
)

if TYPE_CHECKING:
    from elman.recipes.resolve import Resolved

COUNTS = ("valid_tokens", "steps", "best_step", "tokens", "test_tokens", "test_oov", "seconds")
"""Entries of a summary that say how much, not how good."""
QUIET = ("nats_per_token",)
"""Figures that stay in the JSON: they say what another figure says."""


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """The options that every training command has; its own and its data come beside them."""

    recipe: Recipe = None
    out: Out = None
    minutes: Minutes = None
    epochs: Epochs = None
    steps: Steps = None
    settings: Settings = None
    device: Device = "auto"
    seed: Seed = None
    resume: Resume = False
    json: Json = False

    @property
    def length(self) -> dict[str, Any]:
        """How long to train, by the one of three names that was given."""
        return {"minutes": self.minutes, "epochs": self.epochs, "steps": self.steps}

    def setting(self, key: str, value: str | int | None) -> TrainingOptions:
        """The same with one setting more; None is none."""
        if value is None:
            return self
        return replace(
            self, settings=[*(self.settings or ()), f"{key}={json_text(value, ensure_ascii=False)}"]
        )


def with_training_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `TrainingOptions`; it receives them together, as `options`."""
    return place_options(
        command, option_parameters(TrainingOptions), lambda values: TrainingOptions(**values)
    )


@dataclass(frozen=True)
class Training:
    """What a training command was asked for."""

    task: str
    data: Sequence[str] | None
    valid: Sequence[str] | None
    test: Sequence[str] | None
    options: TrainingOptions
    started: float = field(default_factory=time.monotonic)
    """The clock when the command began: minutes count from there."""

    def run(self) -> None:
        """Train as asked, and print the summary."""
        summary = self.trained()
        if self.options.json:
            result_json(summary)
        else:
            result(table(_rows(summary)))

    def trained(self) -> dict[str, Any]:
        """Train as asked, talking about it; the summary."""
        from elman.recipes.run import train as run
        from elman.runs.new_folder import new_run_folder
        from elman.terminal.progress import show

        resolved = self._resolved()
        options = self.options
        folder = options.out or new_run_folder(self.task, resolved.config.data.train)
        for note in resolved.notes:
            talk(f"· {note}")
        last = show(
            run(
                resolved.config,
                folder,
                device=options.device,
                resume=options.resume,
                started=self.started,
            )
        )
        if last.summary is None:  # a signal stopped it, and it was saved
            raise typer.Exit(130)
        return last.summary

    def _resolved(self) -> Resolved:
        from elman.recipes.resolve import resolve, resolve_resumed

        options = self.options
        settings = options.settings or ()
        if not options.resume:
            return resolve(
                self.task,
                self.data or (),
                valid=self.valid or (),
                test=self.test or (),
                recipe=options.recipe,
                overrides=settings,
                seed=options.seed,
                device=options.device,
                **options.length,
            )
        if options.out is None:
            raise UsageError("--resume needs the run folder", "name it with --out")
        # What is repeated on the command line must be what the run began with: the runner compares.
        texts = {"train": self.data, "valid": self.valid, "test": self.test}
        overrides = [f"data.{name}={_absolute(paths)}" for name, paths in texts.items() if paths]
        overrides.append(f'task="{self.task}"')
        overrides += [f'recipe="{options.recipe}"'] if options.recipe is not None else []
        overrides += [f"training.seed={options.seed}"] if options.seed is not None else []
        return resolve_resumed(options.out, overrides=[*settings, *overrides], **options.length)


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
