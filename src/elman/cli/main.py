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
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

import elman
from elman.base.errors import ElmanError, UsageError, nearest
from elman.base.files import explain
from elman.base.interrupts import INTERRUPTED, handled
from elman.base.tables import PLUGINS_VARIABLE, imported, is_outside, plugins
from elman.base.threads import forget_threads
from elman.tasks import TASKS, Task, built_in_tasks, task_named
from elman.terminal.console import result, talk, talk_notes
from elman.terminal.options import Threads, evaluated_signature, parameter

COMMANDS = {
    "train": "elman.cli.train:group",
    "generate": "elman.cli.generate:generate",
    "next": "elman.cli.next_token:next_token",
    "score": "elman.cli.score:score",
    "pairs": "elman.cli.pairs:pairs",
    "evaluate": "elman.cli.evaluate:command",
    "quality": "elman.cli.quality:quality",
}
"""The commands before those of the tasks, and where each is."""
MORE_COMMANDS = {
    "embed": "elman.cli.embed:embed",
    "neighbours": "elman.cli.neighbours:neighbours",
    "inside": "elman.cli.inside:inside",
    "info": "elman.cli.info:info",
    "compare": "elman.cli.compare:compare",
    "serve": "elman.cli.serve:serve",
    "mix": "elman.cli.mix:mix",
    "convert": "elman.cli.convert:convert",
    "search": "elman.cli.search:search",
    "track": "elman.cli.track:track",
    "pack": "elman.cli.pack:pack",
    "unpack": "elman.cli.pack:unpack",
    "corpora": "elman.cli.corpora:corpora",
    "recipes": "elman.cli.recipes:recipes",
    "models": "elman.cli.models:models",
    "data": "elman.cli.data:group",
    "lab": "elman.cli.lab:app",
    "bench": "elman.bench.command:app",
    "config": "elman.cli.show_config:app",
}

INSTEAD = {
    **dict.fromkeys(("--gpu", "--cuda"), "write --device cuda"),
    "--cpu": "write --device cpu",
    **{cell: f"it is a setting: --set model.cell={cell}" for cell in ("lstm", "gru", "rnn")},
    "-o": "write --out",
    **dict.fromkeys(("--optimiser", "--optimizer"), "write --set optimiser.kind=adam, or sgd"),
    **dict.fromkeys(("perplexity", "ppl", "test"), "did you mean 'evaluate'?"),
    "surprisal": "did you mean 'score'?",
    **dict.fromkeys(("sample", "complete", "run", "chat"), "did you mean 'generate'?"),
    "predict": "did you mean 'next', 'generate', 'classify' or 'tag'?",
    "list": "did you mean 'models', 'corpora' or 'recipes'?",
    **dict.fromkeys(("finetune", "fine-tune"), "write elman train TASK DATA --from RUN"),
    **dict.fromkeys(("resume", "continue"), "write elman train TASK --resume --out RUN"),
    **dict.fromkeys(("tokenize", "tokenise"), "elman score shows the tokens of a text"),
    "help": "did you mean '--help'?",
}
"""Hints for names from other programs."""


REWORDED = {
    r"Got unexpected extra argument.*\((.*)\)": r"unexpected argument: \1",
    r"Invalid value for '(\S+)': Input (should be [^,]+).*": r"\1 \2",
    "should be a valid integer": "should be a whole number",
    "should be a valid number": "should be a number",
    "should be greater than or equal to": "should be at least",
    "should be less than or equal to": "should be at most",
}
"""Messages of the parser, and ours."""
ARGUMENTS = ("--data", "--file", "--input", "--model", "--prefix", "--prompt", "--text", "--train")
"""Options of other programs for what is an argument here."""
CHOICE = r"Invalid value for '(\S+)': (?:Value error, )?('.*') is not one of (.*?)\.?"
QUOTE = "'"

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
        words = sys.argv[1:] if arguments is None else list(arguments)
        code = program(filter(is_outside, plugins()), words).main(
            args=words,
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


def program(outside: Iterable[str] = (), words: Sequence[str] = ()) -> Any:
    """Make the commands of the built-in tasks and of those from `outside`.

    If `words`, a command line, names one of the built-in commands, only that is made: making
    all of them takes longer than many commands run. Commands from outside are checked against all.

    The help shows arguments by their metavar alone: typer would add brackets and the names of
    Python types.
    """
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
    names, notes = list(outside), list[str]()
    if names or not _add_one(app, words, notes):
        from elman.cli.verbs import add_commands, verbs

        built_in = list(built_in_tasks())
        added = _usable(names, built_in, notes)
        for name in COMMANDS:
            _add(app, name, [*built_in, *added], notes)
        for task in built_in:
            notes += add_commands(app, task, verbs(task))
            _add_group(app, task)
        for name in MORE_COMMANDS:
            _add(app, name, [*built_in, *added], notes)
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


def _add_one(app: typer.Typer, words: Sequence[str], notes: list[str]) -> bool:
    """Add the built-in command that `words` begin with; return False if there is none."""
    first, second = [*words, "", ""][:2]
    if first in TASKS and task_named(first).commands:
        _add_group(app, task_named(first))
    elif first in COMMANDS or first in MORE_COMMANDS:
        only = [task_named(second)] if first == "train" and second in TASKS else None
        _add(app, first, only or list(built_in_tasks()), notes)
    else:
        return False
    return True


def _add(app: typer.Typer, name: str, tasks: Sequence[Task], notes: list[str]) -> None:
    """Add a command of the tables."""
    found: Any = imported((COMMANDS | MORE_COMMANDS)[name])
    if name in ("train", "evaluate"):
        found = found(tasks)
    elif name == "data":
        found = found(tasks, notes)
    if isinstance(found, typer.Typer):
        app.add_typer(found, name=name)
    elif name == "convert":
        from elman.cli.convert import help_for

        app.command(name, help=help_for(tasks))(found)
    else:
        app.command(name)(found)


def _add_group(app: typer.Typer, task: Task) -> None:
    """Add the group of a task's own commands, if it has any."""
    if task.commands:
        group = typer.Typer(help=task.commands_help, no_args_is_help=True)
        for name, function in task.commands.items():
            group.command(name)(imported(function))
        app.add_typer(group, name=task.name)


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
    from elman.cli import data, evaluate, train
    from elman.cli.verbs import verbs

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
    hint = f"see {context.command_path} --help" if context else "see --help of the command"
    wrong, command = getattr(error, "option_name", None), getattr(context, "command", None)
    # These messages and hints replace the parser's own.
    if wrong and command:
        message = f"there is no option {wrong}"
        hint = _option_hint(wrong, context)
    elif message.startswith("No such command") and context and command:
        wrong = message.split("'")[1]
        message = f"there is no command '{context.command_path} {wrong}'"
        is_own = context.parent is None or wrong == "help"
        hint = (INSTEAD.get(wrong) if is_own else "") or nearest(wrong, command.commands)
        if context.info_name == "train" and Path(wrong).suffix:
            hint = f"name the task before the data, as in elman train {next(iter(TASKS))} {wrong}"
    if choice := re.fullmatch(CHOICE, message):
        return UsageError(
            f"{choice[1]} cannot be {choice[2]}", f"choose one of: {choice[3].replace(QUOTE, '')}"
        )
    for theirs, ours in REWORDED.items():
        message = re.sub(theirs, ours, message)
    if message.startswith("unexpected argument") and re.search("TEXT|WORD|PR", _arguments(context)):
        hint = "put a text of several words in quotes"
    return UsageError(message[:1].lower() + message[1:], hint)


def _arguments(context: Any) -> str:
    """The arguments of a command, as its help shows them."""
    parameters = () if context is None else context.command.params
    return " ".join(str(one.metavar) for one in parameters if one.param_type_name == "argument")


def _option_hint(wrong: str, context: Any) -> str:
    """Propose an option or setting for an unknown option."""
    known = [
        name
        for option in context.command.params
        if option.param_type_name == "option" and not option.hidden
        for name in option.opts
    ]
    from elman.tasks import TASKS

    command = str(context.info_name)
    is_task = command in TASKS or is_outside(command)
    instead = INSTEAD.get(wrong, "")
    named = set(re.findall(r"--[a-z]+", instead))
    if named and named <= set(known) and (is_task or "--set" not in named):
        return instead
    is_argument = wrong in ARGUMENTS and not (is_task and wrong == "--model")
    if is_argument and (arguments := _arguments(context)):
        return f"write it without an option: {context.command_path} {arguments}"
    if "--set" not in known:
        return nearest(wrong, [*known, "--help"])
    from elman.base.config import same_setting
    from elman.recipes.resolve import settings_of

    task = task_named(command) if is_task else None
    names = [] if task is None else settings_of(task)
    name = wrong.lstrip("-").replace("-", "_")
    same = same_setting(name, names)
    alike = [one for one in names if name in one.rpartition(".")[2].split("_")]
    found = list(dict.fromkeys([*same, *alike]))
    for option in () if task is None else task.options:
        if option.setting in same or [option.setting] == found:
            return f"did you mean '--{option.name.replace('_', '-')}'?"
    if len(found) == 1:
        return f"it is a setting: write --set {found[0]}=VALUE"
    if found and not any(one.startswith(wrong) for one in known):
        return f"it is one of the settings {', '.join(found)}: write --set NAME=VALUE"
    hint = nearest(wrong, [*known, "--help"])
    return hint if hint.endswith("?") else f"{hint}; settings are written --set KEY=VALUE"
