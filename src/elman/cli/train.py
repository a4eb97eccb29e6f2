"""`elman train`: a command for each task, made from its declaration."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import Signature
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from elman.base.config import merge, nested, parse_overrides
from elman.base.errors import ElmanError, UsageError
from elman.base.launch import launch
from elman.base.tables import imported, is_outside, trust
from elman.base.threads import spare_numpy_threads
from elman.tasks import Option, Task, task_named
from elman.tasks.task import Shortcut, texts_of
from elman.terminal import console
from elman.terminal.console import figure, number, spoken
from elman.terminal.options import (
    CountedOptions,
    ResumedOptions,
    Test,
    TrainingOptions,
    Valid,
    argument,
    option,
    option_parameters,
    parameter,
)
from elman.train.ranks import ALONE, Ranks, joined

if TYPE_CHECKING:
    from elman.recipes.resolve import Resolved

COUNTS = (
    *("valid_tokens", "steps", "best_step", "tokens", "test_tokens", "oov", "test_oov"),
    *("seconds", "validation_share", "saving_share", "best_epoch", "best_seconds"),
    "later_validations",
)
"""Entries of a summary that are amounts, not figures of quality."""


OVERFITS, LATER_VALIDATIONS = 1 / 3, 3
"""If at least this share of a run and so many validations came after the best model, the summary
says what to try."""

FAULTLESS = {
    **dict.fromkeys(("accuracy", "balanced_accuracy", "macro_f1", "f1"), 1.0),
    **dict.fromkeys(("bleu", "chrf"), 99.999),  # sums of rounded logarithms
}
"""What a model without mistakes reaches on the validation text: then there is nothing to try."""


class TrainCommands(typer.core.TyperGroup):
    """The commands of all tasks; "package.module:NAME" is one too."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if not is_outside(cmd_name):
            return super().get_command(ctx, cmd_name)
        trust(cmd_name)
        outside = typer.Typer()
        with declaration(cmd_name):
            outside.command(cmd_name)(train_command(task_named(cmd_name)))
            return typer.main.get_command(outside)


@contextmanager
def declaration(name: str) -> Iterator[None]:
    """Explain errors that come from the declaration of the task `name`."""
    try:
        yield
    except ElmanError:
        raise
    except Exception as error:
        raise UsageError(
            f"the task '{name}' cannot be used: {type(error).__name__}: {error}",
            "correct its declaration; docs/concepts/tasks.md explains the parts",
        ) from error


def group(tasks: Iterable[Task]) -> typer.Typer:
    app = typer.Typer(help="Train a model.", no_args_is_help=True, cls=TrainCommands)
    for task in tasks:
        app.command(task.name)(train_command(task))
    return app


@dataclass(frozen=True)
class Training:
    """A request to train."""

    task: Task
    data: Sequence[str]
    valid: Sequence[str]
    test: Sequence[str]
    settings: Mapping[str, Any]
    """The user's settings, nested."""
    options: TrainingOptions
    passed: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the task's `fit`."""
    started: float = field(default_factory=time.monotonic)
    """The start of the command, for --minutes."""
    ranks: Ranks = ALONE
    """The processes that train together."""

    def run(self) -> None:
        """Train, and print the summary."""
        summary = self.trained()
        if self.options.json:
            console.result_json(summary)
        else:
            rows = self.task.summary_rows
            make = _summary_rows if rows is None else imported(rows)
            console.result(console.table(make(summary)))

    def trained(self) -> dict[str, Any]:
        """Train and show progress; return the summary."""
        from elman.recipes.run import train
        from elman.terminal.progress import Progress

        ranks = self.ranks
        resolved, folder, options = ranks.from_leader(self._chosen)
        summary = None
        with Progress() if ranks.is_leader else nullcontext() as progress:
            if progress is not None:
                progress.notes(resolved.notes)
            for report in train(
                resolved.config,
                folder,
                device=self.options.device,
                resume=options.resume,
                overwrite=options.overwrite,
                named=self._named(),
                started=self.started,
                track=getattr(options, "track", None) or (),
                ranks=ranks,
                **self.passed,
            ):
                assert progress is not None
                progress.show(report)
                summary = report.summary
        summary = ranks.from_leader(lambda: summary)
        if summary is None:  # stopped by a signal, and saved
            raise typer.Exit(130)
        return summary

    def _chosen(self) -> tuple[Resolved, Path, TrainingOptions]:
        """Choose the settings and the run folder; a run that torchrun starts again is resumed."""
        from elman.recipes.run import is_continued
        from elman.runs.new_folder import new_run_folder

        if is_continued(self.options.out) and not self.options.resume:
            options = replace(self.options, resume=True, overwrite=False)
            return replace(self, options=options)._chosen()
        if self.options.trust_data and not self.options.resume:
            raise UsageError("--trust-data has no effect without --resume", "drop it")
        if self.options.overwrite and (self.options.resume or self.options.out is None):
            why = "contradicts --resume" if self.options.resume else "needs the run folder"
            raise UsageError(
                f"--overwrite {why}", "drop it" if self.options.resume else "name it with --out"
            )
        if self.options.out is None and launch().job is not None:
            raise UsageError("torchrun needs the run folder", "name it with --out")
        resolved, options = self._resolved(), self.options
        folder = options.out or new_run_folder(self.task.name, resolved.config.data.train)
        return resolved, folder, options

    def _named(self) -> list[str] | None:
        """The files that the user named, which a resumed run may read; None: all."""
        from elman.recipes.resolve import absolute_paths, texts_in

        if self.options.trust_data:
            return None
        typed = [self.data, self.valid, self.test, list(texts_in(self.settings))]
        return [name for names in typed for name in (*names, *absolute_paths(names))]

    def _resolved(self) -> Resolved:
        from elman.recipes.resolve import (
            absolute_paths,
            nothing_to_resume,
            resolve,
            resolve_resumed,
        )
        from elman.runs.run_folder import CONFIG_FILE, STAGES_FOLDER

        options = self.options
        length: dict[str, Any] = {n: getattr(options, n) for n in ("minutes", "epochs", "steps")}
        out = options.out
        if self.task.resumes and out is not None:
            out = out if (out / CONFIG_FILE).exists() else out / STAGES_FOLDER
            # A run that was killed before its first stage starts again.
            begins = bool(self.data) and not (out / CONFIG_FILE).exists()
            if options.resume and not begins and not (out / CONFIG_FILE).exists():
                raise nothing_to_resume(out.parent)
        else:
            begins = False
        if not options.resume or begins:
            return resolve(
                self.task.name,
                self.data,
                valid=self.valid,
                test=self.test,
                recipe=options.recipe,
                settings=self.settings,
                seed=options.seed,
                device=options.device,
                **length,
            )
        if out is None:
            raise UsageError("--resume needs the run folder", "name it with --out")
        # The runner checks that repeated settings are those of the run.
        texts = {"train": self.data, "valid": self.valid, "test": self.test}
        repeated: dict[str, Any] = {
            "task": self.task.name,
            "data": {name: absolute_paths(paths) for name, paths in texts.items() if paths},
        }
        if options.recipe is not None:
            repeated["recipe"] = options.recipe
        if options.seed is not None:
            repeated["training"] = {"seed": options.seed}
        return resolve_resumed(out, settings=merge(self.settings, repeated), **length)


def train_command(task: Task, shortcut: Shortcut | None = None) -> Callable[..., None]:
    """Make the training command of a task: its data, its own options, and the shared ones."""
    defaults = {} if shortcut is None else shortcut.settings
    own_options = [own for own in task.options if own.setting not in defaults]

    def command(**given: Any) -> None:
        if task.fit is not None:  # counting has no products of matrices
            spare_numpy_threads()
        data, valid, test = (list(given.pop(key) or ()) for key in ("data", "valid", "test"))
        values = [(own, given.pop(own.name)) for own in own_options]
        values = [(own, value) for own, value in values if value is not None]
        actions = [(own.action, value) for own, value in values if own.action is not None]
        options = TrainingOptions(**given)
        chosen, passed = task.divide({own.name: v for own, v in values if own.action is None})
        settings = merge(parse_overrides(options.settings or ()), chosen)
        settings = merge(nested(defaults), settings)
        with joined(options.device) as (ranks, device):
            options, texts = replace(options, device=device), (data, valid, test)
            column = passed.get("column")
            if ranks.size > 1:
                ranks.from_leader(partial(_check_divisible, task, (*data, *valid, *test)))
            data, valid, test = ranks.prepare(
                lambda: (texts_of(task, texts, passed, options.encoding), {})
            )
            if task.reads_columns and ranks.is_leader:
                from elman.text.converting import check_column
                from elman.text.records import plain_sheets

                if any(texts):
                    check_column(column, chain(*texts), (*data, *valid, *test))
                console.talk_notes(plain_sheets((*data, *valid, *test)))
            training = Training(task, data, valid, test, settings, options, passed, ranks=ranks)
            for action, value in actions:
                imported(action)(training, value)
            if not actions:
                training.run()

    shared: type[Any] = TrainingOptions
    if task.fit is not None:
        shared = ResumedOptions if task.resumes else CountedOptions
    valid, test = _kinds_of_texts(task)
    text = Annotated[list[str] | None, argument(task.data_metavar, task.data_help)]
    command.__signature__ = Signature(  # type: ignore[attr-defined]
        [
            parameter("data", text),
            *(parameter(own.name, _annotation(own)) for own in own_options),
            parameter("valid", valid),
            parameter("test", test),
            *option_parameters(shared),
        ]
    )
    command.__doc__ = task.help if shortcut is None else shortcut.help
    return command


def _check_divisible(task: Task, files: Sequence[str]) -> None:
    """Refuse what several processes cannot do together."""
    from elman.text.converting import STDIN

    if task.fit is not None:
        raise UsageError(
            f"{task.what} is fitted by one process", "start it without torchrun; see --threads"
        )
    if STDIN in files:
        raise UsageError("several processes cannot read stdin", "write the text to a file")


def _annotation(own: Option) -> Any:
    hidden = own.refusal is not None
    flags = () if own.flag is None else (own.flag,)
    made = option(own.metavar, own.help, *flags, min=own.minimum, hidden=hidden)
    return Annotated[own.type | None, made]


def _kinds_of_texts(task: Task) -> tuple[Any, Any]:
    """The annotations of --valid and --test, which take two files if a text is two files."""
    if task.files_per_text == 2:
        metavar, pair = "SOURCE TARGET", tuple[str, str] | None
        held_out = "Two files to validate on; else the last pairs are held out."
        test = option(metavar, "Two files to test the finished model on.")
        return Annotated[pair, option(metavar, held_out)], Annotated[pair, test]
    if task.fit is not None:
        files = list[str] | None
        first, second = "Text to measure the model on.", "More text to measure it on."
        return Annotated[files, option("FILE", first)], Annotated[files, option("FILE", second)]
    return Valid, Test


def _time(summary: dict[str, Any]) -> str:
    names = {"validation_share": "validation and samples", "saving_share": "saving"}
    shares = [f", {name} {summary[key]:.1%}" for key, name in names.items() if key in summary]
    return console.duration(summary["seconds"]) + "".join(shares)


def best_model(summary: dict[str, Any]) -> str | None:
    """Say from where in the run the saved model is; None if it is the last one."""
    best, steps = summary.get("best_step"), summary["steps"]
    if best is None or best == steps:
        return None
    if best == 0:
        return "the one at the start: training did not improve it on the validation text"
    told = f"after {number(best)} of {number(steps)} updates"
    if "best_seconds" in summary:
        told += f", at {console.duration(summary['best_seconds'])}"
    later = summary.get("later_validations", LATER_VALIDATIONS)  # earlier versions have no number
    if steps - best < OVERFITS * steps or later < LATER_VALIDATIONS:
        return told
    if any(summary.get(name, 0.0) >= most for name, most in FAULTLESS.items()):
        return f"{told}; it makes no mistake on the validation text"
    return f"{told}; training longer did not help: try a shorter run, more dropout or more text"


def _summary_rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    rows = []
    for prefix, name in (("", "validation"), ("test_", "test")):
        for key, value in summary.items():
            if key.startswith("test_") != bool(prefix) or key in COUNTS:
                continue
            quantity = key.removeprefix(prefix)
            if isinstance(value, float) and quantity not in ("nats_per_token", "tokens_per_second"):
                rows.append((f"{name} {spoken(quantity)}", figure(quantity, value)))
        rows += console.unknown_rows(summary, prefix, name)
    if earlier := summary.get("earlier"):
        from elman.runs.card import told_change

        rows.append((f"validation text of {earlier['run']}", told_change(earlier)))
    if told := best_model(summary):
        rows.append(("saved model", told))
    return [
        *rows,
        ("updates", number(summary["steps"])),
        ("tokens read", number(summary["tokens"])),
        ("tokens per second", number(round(summary["tokens_per_second"]))),
        ("time", _time(summary)),
        ("run folder", summary["out"]),
    ]
