"""`elman train`: from data to a model, a command for each task, made from its declaration."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from elman.base.config import merge, nested, parse_overrides
from elman.base.errors import UsageError
from elman.base.tables import is_outside, trust
from elman.tasks import TASKS, Option, Task, task_named
from elman.tasks.task import imported
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
    CountedOptions,
    Test,
    TrainingOptions,
    Valid,
    option_parameters,
)

if TYPE_CHECKING:
    from elman.recipes.resolve import Resolved

COUNTS = ("valid_tokens", "steps", "best_step", "tokens", "test_tokens", "test_oov", "seconds")
"""Entries of a summary that say how much, not how good."""
QUIET = ("nats_per_token",)
"""Figures for the JSON only: another figure says the same."""


class TrainCommands(typer.core.TyperGroup):
    """The commands of the table of tasks; "package.module:NAME" is one too."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if not is_outside(cmd_name):
            return super().get_command(ctx, cmd_name)
        trust(cmd_name)
        outside = typer.Typer()
        outside.command(cmd_name)(train_command(task_named(cmd_name), cmd_name))
        return typer.main.get_command(outside)


app = typer.Typer(help="Train a model.", no_args_is_help=True, cls=TrainCommands)


@app.callback()
def _group() -> None:
    pass


@dataclass(frozen=True)
class Training:
    """What a training command was asked for."""

    task: Task
    name: str
    """The task's name, or package.module:NAME."""
    data: Sequence[str]
    valid: Sequence[str]
    test: Sequence[str]
    settings: Mapping[str, Any]
    """The user's settings, nested."""
    options: TrainingOptions
    passed: Mapping[str, Any] = field(default_factory=dict)
    """Options that a counted task takes beside its settings."""
    started: float = field(default_factory=time.monotonic)
    """The clock when the command began: minutes count from there."""

    def run(self) -> None:
        """Train, and print the summary."""
        summary = self.trained()
        if self.options.json:
            result_json(summary)
        else:
            rows = self.task.part("summary_rows") or _summary_rows
            result(table(rows(summary)))

    def trained(self) -> dict[str, Any]:
        """Train and show progress; return the summary."""
        from elman.recipes.run import train
        from elman.runs.new_folder import new_run_folder
        from elman.terminal.progress import Progress

        resolved = self._resolved()
        options, summary = self.options, None
        folder = options.out or new_run_folder(self.name, resolved.config.data.train)
        for note in resolved.notes:
            talk(f"· {note}")
        with Progress() as progress:
            for report in train(
                resolved.config,
                folder,
                device=options.device,
                resume=options.resume,
                started=self.started,
                **self.passed,
            ):
                progress.show(report)
                summary = report.summary
        if summary is None:  # a signal stopped it, and it was saved
            raise typer.Exit(130)
        return summary

    def _resolved(self) -> Resolved:
        from elman.recipes.resolve import absolute_paths, resolve, resolve_resumed

        options = self.options
        length: dict[str, Any] = {
            "minutes": options.minutes,
            "epochs": options.epochs,
            "steps": options.steps,
        }
        if not options.resume:
            return resolve(
                self.name,
                self.data,
                valid=self.valid,
                test=self.test,
                recipe=options.recipe,
                settings=self.settings,
                seed=options.seed,
                device=options.device,
                **length,
            )
        if options.out is None:
            raise UsageError("--resume needs the run folder", "name it with --out")
        # What is repeated on the command line must equal what the run has: the runner checks.
        texts = {"train": self.data, "valid": self.valid, "test": self.test}
        repeated: dict[str, Any] = {
            "task": self.name,
            "data": {name: absolute_paths(paths) for name, paths in texts.items() if paths},
        }
        if options.recipe is not None:
            repeated["recipe"] = options.recipe
        if options.seed is not None:
            repeated["training"] = {"seed": options.seed}
        settings = merge(self.settings, repeated)
        return resolve_resumed(options.out, settings=settings, **length)


def train_command(task: Task, name: str) -> Callable[..., None]:
    """The training command of a task: its data, its own options, and those that all share."""

    def command(**given: Any) -> None:
        data, valid, test = (list(given.pop(key) or ()) for key in ("data", "valid", "test"))
        own = {option: given.pop(option.name) for option in task.options}
        options = shared(**given)
        settings = parse_overrides(options.settings or ())
        passed, action = {}, None
        for option, value in own.items():
            if value is None:
                continue
            if option.refusal is not None:
                raise UsageError(*option.refusal)
            if option.action is not None:
                action = (imported(option.action), value)
            elif option.setting is not None:
                settings = merge(settings, nested({option.setting: value}))
            else:
                passed[option.name] = value
        everything = options if isinstance(options, TrainingOptions) else options.as_training()
        training = Training(task, name, data, valid, test, settings, everything, passed)
        if action is None:
            training.run()
        else:
            action[0](training, action[1])

    shared = CountedOptions if task.fit is not None else TrainingOptions
    text = Annotated[
        list[str] | None,
        typer.Argument(metavar=task.data_metavar, help=task.data_help, show_default=False),
    ]
    parameters = [Parameter("data", Parameter.KEYWORD_ONLY, default=None, annotation=text)]
    parameters += [_parameter(option) for option in task.options]
    parameters += [*_texts(task), *option_parameters(shared)]
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__doc__ = task.help
    return command


def _parameter(option: Option) -> Parameter:
    """An option of a task as typer reads it."""
    annotation = Annotated[
        option.type | None,  # type: ignore[name-defined]
        typer.Option(
            metavar=option.metavar,
            help=option.help,
            min=option.minimum,
            hidden=option.refusal is not None,
        ),
    ]
    return Parameter(option.name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _texts(task: Task) -> list[Parameter]:
    """--valid and --test; where a text is two files, each takes two."""
    kinds: dict[str, Any] = {"valid": Valid, "test": Test}
    if task.files_per_text == 2:
        helps = {
            "valid": "Two files to validate on; else the end of the pairs is held out.",
            "test": "Two files to test the finished model on.",
        }
        kinds = {
            name: Annotated[
                tuple[str, str] | None, typer.Option(metavar="SOURCE TARGET", help=text)
            ]
            for name, text in helps.items()
        }
    elif task.fit is not None:
        helps = {"valid": "Text to measure the model on.", "test": "More text to measure it on."}
        kinds = {
            name: Annotated[list[str] | None, typer.Option(metavar="FILE", help=text)]
            for name, text in helps.items()
        }
    return [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in kinds.items()
    ]


def _summary_rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """The summary as rows: how good, how much, where."""
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


for _name in TASKS:
    _task = task_named(_name)
    app.command(_name, help=_task.help)(train_command(_task, _name))
