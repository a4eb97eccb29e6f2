"""The `elman` program: its commands, and the one place where errors become sentences.

Exit codes: 0 done, 1 failed, 2 used wrongly, 130 interrupted.
"""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import typer
import typer.core

import elman
from elman.base.errors import ElmanError, UsageError, nearest
from elman.base.files import explain
from elman.bench.command import app as bench_app
from elman.cli import (
    convert,
    corpora,
    data,
    embed,
    evaluate,
    generate,
    info,
    mix,
    neighbours,
    next_token,
    recipes,
    score,
    serve,
    show_config,
    train,
)
from elman.cli.verbs import verbs
from elman.terminal.console import result, talk

VERBS = dict(verbs())
ORDER = (
    "train",
    "generate",
    "next",
    "score",
    "evaluate",
    *VERBS,
    "embed",
    "neighbours",
    "info",
    "mix",
    "convert",
)
"""What comes first in the help; the other commands follow."""


INSTEAD = {
    **dict.fromkeys(("--gpu", "--cuda"), "write --device cuda"),
    "--cpu": "write --device cpu",
    **{cell: f"it is a setting: --set model.cell={cell}" for cell in ("lstm", "gru", "rnn")},
    "perplexity": "did you mean 'evaluate'?",
    "surprisal": "did you mean 'score'?",
    "sample": "did you mean 'generate'?",
    "help": "did you mean '--help'?",
}
"""What others call what we have."""


REWORDED = {
    r"Got unexpected extra argument.*\((.*)\)": r"there is no place for: \1",
    r"Invalid value for '(\S+)': Input (should be [^,]+).*": r"\1 \2",
}
"""What the parser says, and how we say it."""


class Commands(typer.core.TyperGroup):
    """The commands in the order in which one meets them."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names, for the help."""
        return [*ORDER, *(name for name in self.commands if name not in ORDER)]


app = typer.Typer(
    name="elman",
    cls=Commands,
    help="Train, measure, explain and use recurrent language models.",
    epilog="A MODEL is a run folder, an ARPA file, or runs joined: 0.7*runs/a+0.3*runs/b. "
    "Start with: elman train --help",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
    rich_markup_mode=None,  # plain help appears in half the time and reads the same in a file
    pretty_exceptions_enable=False,
)
app.add_typer(train.app, name="train")
app.command("generate")(generate.generate)
app.command("next")(next_token.next_token)
app.command("score")(score.score)
app.command("evaluate")(evaluate.evaluate)
for _verb, _command_of_task in VERBS.items():
    app.command(_verb)(_command_of_task)
app.command("embed")(embed.embed)
app.command("neighbours")(neighbours.neighbours)
app.command("info")(info.info)
app.command("serve")(serve.serve)
app.command("mix")(mix.mix)
app.command("convert")(convert.convert)
app.command("corpora")(corpora.corpora)
app.command("recipes")(recipes.recipes)
app.add_typer(data.app, name="data")
app.add_typer(bench_app, name="bench")
app.add_typer(show_config.app, name="config")

# Newer versions of typer carry their own copy of click. The common ancestor of the parser's errors
# is found through a name that typer has exported all along.
_ParserError: type[Exception] = typer.BadParameter.__mro__[2]


def _version(wanted: bool) -> None:
    if wanted:
        result(f"elman {elman.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and leave.", is_eager=True, callback=_version
        ),
    ] = False,
) -> None:
    pass


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; the result is the exit code."""
    try:
        code = _command().main(
            args=None if arguments is None else list(arguments),
            prog_name="elman",
            standalone_mode=False,
        )
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except ElmanError as error:
        return _fail(error)
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        # The reader (`| head`) has seen enough. What is still buffered must not raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _fail(explain(error, error.filename or "a file"))
    except MemoryError:
        return _fail(
            ElmanError("the memory of this machine is exhausted", "use a smaller model or batch")
        )
    except _ParserError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # a group of commands alone: its help
            talk(str(error))
            return UsageError.exit_code
        return _fail(_usage(error))
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's, which is not imported here
            raise
        return _fail(
            ElmanError(
                "the memory of the device is exhausted", "use a smaller batch, or --device cpu"
            )
        )


def main() -> None:
    """The entry point of the `elman` program."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    code = run()
    gc.freeze()  # Python looks through all objects once more at its end, for nothing
    sys.exit(code)


def _command() -> Any:
    """All of the commands, their arguments written in the help as we write them.

    The library would put brackets around them once more, and Python's names of types behind them.
    """
    program = typer.main.get_command(app)
    waiting: list[Any] = [program]
    while waiting:
        command = waiting.pop()
        waiting += getattr(command, "commands", {}).values()
        for argument in command.params:
            if argument.param_type_name == "argument":
                argument.get_usage_pieces = partial(_usage_pieces, argument)
                argument.get_help_record = partial(_help_record, argument, argument.get_help_record)
    return program


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
    """The argument parser's complaint, worded as our own are."""
    message = str(getattr(error, "format_message", lambda: error)()).strip().rstrip(".")
    context = getattr(error, "ctx", None)
    hint = f"see {context.command_path if context else 'elman'} --help"
    wrong, command = getattr(error, "option_name", None), getattr(context, "command", None)
    # The parser adds guesses of its own, which are not as good.
    if wrong and command:
        message = f"there is no option {wrong}"
        hint = INSTEAD.get(wrong) or _option_hint(wrong, context)
    elif message.startswith("No such command") and command:
        wrong = message.split("'")[1]
        message = f"there is no command '{wrong}'"
        hint = INSTEAD.get(wrong) or nearest(wrong, command.commands)
    for theirs, ours in REWORDED.items():
        message = re.sub(theirs, ours, message)
    return UsageError(message[:1].lower() + message[1:], hint)


def _option_hint(wrong: str, context: Any) -> str:
    """What may have been meant by an option that a command does not have."""
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
    from elman.tasks import task_named

    names = settings_of(task_named(str(context.info_name)))
    if settings := same_setting(wrong.lstrip("-").replace("-", "_"), names):
        return f"it is a setting: write --set {settings[0]}=VALUE"
    hint = nearest(wrong, [*known, "--help"])
    return hint if hint.endswith("?") else f"{hint}; settings are written --set KEY=VALUE"
