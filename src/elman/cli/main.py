"""The `elman` program: its commands, and how errors are printed.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial, wraps
from inspect import Signature, signature
from typing import Annotated, Any

import typer
import typer.core

import elman
from elman.base.errors import ElmanError, UsageError, nearest
from elman.base.files import explain
from elman.base.interrupts import INTERRUPTED, handled
from elman.base.tables import PLUGINS_VARIABLE, imported, is_outside, plugins
from elman.base.threads import forget_threads
from elman.bench.command import app as bench_app
from elman.cli import (
    compare,
    convert,
    corpora,
    data,
    embed,
    evaluate,
    generate,
    info,
    inside,
    lab,
    mix,
    models,
    neighbours,
    next_token,
    pack,
    pairs,
    quality,
    recipes,
    score,
    search,
    serve,
    show_config,
    track,
    train,
)
from elman.cli.verbs import add_commands, verbs
from elman.tasks import Task, built_in_tasks, task_named
from elman.terminal.console import result, talk, talk_notes
from elman.terminal.options import Threads, evaluated_signature, parameter

INSTEAD = {
    **dict.fromkeys(("--gpu", "--cuda"), "write --device cuda"),
    "--cpu": "write --device cpu",
    **{cell: f"it is a setting: --set model.cell={cell}" for cell in ("lstm", "gru", "rnn")},
    "perplexity": "did you mean 'evaluate'?",
    "surprisal": "did you mean 'score'?",
    "sample": "did you mean 'generate'?",
    "help": "did you mean '--help'?",
}
"""Hints for names from other programs."""


REWORDED = {
    r"Got unexpected extra argument.*\((.*)\)": r"unexpected argument: \1",
    r"Invalid value for '(\S+)': Input (should be [^,]+).*": r"\1 \2",
}
"""Messages of the parser, and ours."""

OUT_OF_MEMORY = ElmanError(
    "the memory of this machine is exhausted",
    "use a smaller model, batch or text, or a machine with more memory",
)
ALLOCATION = (
    *("DefaultCPUAllocator", "can't allocate memory", "bad_alloc", "can't start new thread"),
    *("could not create a primitive", "could not execute a primitive"),
    "could not create a memory object",
)
"""Words in errors of torch, oneDNN and Python that mean the same as MemoryError."""


class Commands(typer.core.TyperGroup):
    """List the commands that use a model first."""

    def list_commands(self, ctx: Any) -> list[str]:
        last = ("serve", "lab", "corpora", "recipes", "models", "data", "bench", "config")
        return sorted(self.commands, key=lambda name: (name != "train", name in last))


# The base class of the parser's errors. Newer versions of typer have their own copy of click, so it
# is found through a name that every version exports.
_ParserError: type[Exception] = typer.BadParameter.__mro__[2]


def _version(wanted: bool) -> None:
    if wanted:
        result(f"elman {elman.__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", is_eager=True, callback=_version
        ),
    ] = False,
) -> None:
    pass


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; return the exit code."""
    forget_threads()
    try:
        code = program(filter(is_outside, plugins())).main(
            args=None if arguments is None else list(arguments),
            prog_name="elman",
            standalone_mode=False,
        )
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except ElmanError as error:
        return _fail(error)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) closed the pipe. Flushing the rest must not raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _fail(explain(error, error.filename or "a file"))
    except MemoryError:
        return _fail(OUT_OF_MEMORY)
    except RecursionError:
        return _fail(
            ElmanError("the input is nested too deeply", "check the files that the command reads")
        )
    except _ParserError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # a group without a command
            talk(str(error))
            return UsageError.exit_code
        return _fail(_usage(error))
    except RuntimeError as error:
        if any(words in str(error) for words in ALLOCATION):
            return _fail(OUT_OF_MEMORY)
        if type(error).__name__ != "OutOfMemoryError":  # torch's, without importing torch
            raise
        return _fail(
            ElmanError(
                "the memory of the device is exhausted", "use a smaller batch, or --device cpu"
            )
        )
    finally:
        handled()


def main() -> None:
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by the caller, as `elman models >&-` does
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    code = run()
    gc.freeze()  # skip the garbage collection at exit
    sys.exit(code)


def program(outside: Iterable[str] = ()) -> Any:
    """Make the commands of the built-in tasks and of those from `outside`.

    The help shows arguments by their metavar alone: typer would add brackets and the names of
    Python types.
    """
    built_in, notes = list(built_in_tasks()), list[str]()
    added = _usable(outside, built_in, notes)
    tasks = [*built_in, *added]
    app = typer.Typer(
        name="elman",
        cls=Commands,
        help="Train, measure, explain and use recurrent language models.",
        epilog="A MODEL is a run folder, an ARPA file, or a mixture: 0.7*runs/a+0.3*runs/b. "
        "Start with: elman train --help",
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        rich_markup_mode=None,  # plain help takes half the time
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    app.add_typer(train.group(tasks), name="train")
    app.command("generate")(generate.generate)
    app.command("next")(next_token.next_token)
    app.command("score")(score.score)
    app.command("pairs")(pairs.pairs)
    app.command("evaluate")(evaluate.command(tasks))
    app.command("quality")(quality.quality)
    for task in built_in:
        notes += add_commands(app, task, verbs(task))
        if task.commands:
            group = typer.Typer(help=task.commands_help, no_args_is_help=True)
            for name, function in task.commands.items():
                group.command(name)(imported(function))
            app.add_typer(group, name=task.name)
    app.command("embed")(embed.embed)
    app.command("neighbours")(neighbours.neighbours)
    app.command("inside")(inside.inside)
    app.command("info")(info.info)
    app.command("compare")(compare.compare)
    app.command("serve")(serve.serve)
    app.command("mix")(mix.mix)
    app.command("convert", help=convert.help_for(tasks))(convert.convert)
    app.command("search")(search.search)
    app.command("track")(track.track)
    app.command("pack")(pack.pack)
    app.command("unpack")(pack.unpack)
    app.command("corpora")(corpora.corpora)
    app.command("recipes")(recipes.recipes)
    app.command("models")(models.models)
    app.add_typer(data.group(tasks, notes), name="data")
    app.add_typer(lab.app, name="lab")
    app.add_typer(bench_app, name="bench")
    app.add_typer(show_config.app, name="config")
    for task in added:  # last, so that no built-in command is replaced
        notes += add_commands(app, task, verbs(task))
    talk_notes(notes)
    _add_threads(app)
    made = typer.main.get_command(app)
    waiting: list[Any] = [made]
    while waiting:
        command = waiting.pop()
        waiting += getattr(command, "commands", {}).values()
        for argument in command.params:
            if argument.param_type_name == "argument" and argument.metavar:
                argument.get_usage_pieces = partial(_usage_pieces, argument)
                argument.get_help_record = partial(_help_record, argument, argument.get_help_record)
    return made


def _with_threads(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the option `--threads`, beside `--device`; parsing sets it."""

    @wraps(command)
    def run(**given: Any) -> None:
        del given["threads"]
        command(**given)

    own = list(evaluated_signature(command).parameters.values())
    names = [one.name for one in own]
    place = names.index("device") + 1 if "device" in names else len(own)
    own = [one.replace(kind=one.KEYWORD_ONLY) for one in own if one.kind is not one.VAR_KEYWORD]
    own.insert(place, parameter("threads", Threads))
    # typer reads a command's options from its signature.
    run.__signature__ = Signature(own)  # type: ignore[attr-defined]
    return run


def _add_threads(app: typer.Typer) -> None:
    """Give every command with a device the option --threads, unless it has its own."""
    for command in app.registered_commands:
        assert command.callback is not None
        names = signature(command.callback).parameters
        if "device" in names and "threads" not in names:
            command.callback = _with_threads(command.callback)
    for group in app.registered_groups:
        assert group.typer_instance is not None
        _add_threads(group.typer_instance)


def _usable(names: Iterable[str], built_in: Sequence[Task], notes: list[str]) -> list[Task]:
    """The tasks whose commands can be made; add notes about the others to `notes`."""
    tasks: list[Task] = []
    for name in names:
        try:
            with train.declaration(name):
                task, trial = task_named(name), typer.Typer()
                trial.command("train")(train.train_command(task))
                trial.command("evaluate")(evaluate.command([*built_in, *tasks, task]))
                for command, function in (*verbs(task), *data.data_commands(task)):
                    trial.command(command)(function)
                typer.main.get_command(trial)
        except ElmanError as error:
            notes.append(f"ignored in {PLUGINS_VARIABLE}: {error.message}")
        else:
            tasks.append(task)
    return tasks


def _usage_pieces(argument: Any, context: Any) -> list[str]:
    return [argument.metavar]


def _help_record(argument: Any, record: Any, context: Any) -> tuple[str, str]:
    _, prose = record(context)
    return argument.metavar, prose.removesuffix("[required]").rstrip()


def _fail(error: ElmanError) -> int:
    talk(f"error: {error.message}")
    if error.hint or isinstance(error, UsageError):
        talk(f"hint: {error.hint or 'see --help of the command'}")
    return error.exit_code


def _usage(error: Exception) -> UsageError:
    """Reword an error of the argument parser."""
    message = str(getattr(error, "format_message", lambda: error)()).strip().rstrip(".")
    context = getattr(error, "ctx", None)
    hint = f"see {context.command_path if context else 'elman'} --help"
    wrong, command = getattr(error, "option_name", None), getattr(context, "command", None)
    # These messages and hints replace the parser's own.
    if wrong and command:
        message = f"there is no option {wrong}"
        hint = INSTEAD.get(wrong) or _option_hint(wrong, context)
    elif message.startswith("No such command") and context and command:
        wrong = message.split("'")[1]
        message = f"there is no command '{context.command_path} {wrong}'"
        hint = INSTEAD.get(wrong) or nearest(wrong, command.commands)
    for theirs, ours in REWORDED.items():
        message = re.sub(theirs, ours, message)
    return UsageError(message[:1].lower() + message[1:], hint)


def _option_hint(wrong: str, context: Any) -> str:
    """Propose an option or setting for an unknown option."""
    known = [
        name
        for option in context.command.params
        if option.param_type_name == "option" and not option.hidden
        for name in option.opts
    ]
    if "--set" not in known:
        return nearest(wrong, [*known, "--help"])
    from elman.base.config import same_setting
    from elman.recipes.resolve import settings_of
    from elman.tasks import TASKS

    command = str(context.info_name)
    is_task = command in TASKS or is_outside(command)
    names = settings_of(task_named(command)) if is_task else []
    if settings := same_setting(wrong.lstrip("-").replace("-", "_"), names):
        return f"it is a setting: write --set {settings[0]}=VALUE"
    hint = nearest(wrong, [*known, "--help"])
    return hint if hint.endswith("?") else f"{hint}; settings are written --set KEY=VALUE"
