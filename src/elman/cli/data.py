"""`elman data`: check a text, and the commands of tasks that prepare data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import typer

from elman.base.counting import counted
from elman.base.tables import imported
from elman.cli.verbs import NamedCommand, add_commands
from elman.tasks import Task
from elman.terminal.console import number, result, result_json, size, table, visible
from elman.terminal.options import Column, Encoding, Json, argument
from elman.terminal.stdin import in_columns

SHOWN_ERRORS = 5
"""Lines that are not UTF-8; --json has more."""


def group(tasks: Iterable[Task], notes: list[str]) -> typer.Typer:
    """Make the commands; add notes about those that are left out to `notes`."""
    app = typer.Typer(help="Check and prepare text.", no_args_is_help=True)
    app.command("check")(check)
    for task in tasks:
        notes += add_commands(app, task, data_commands(task))
    return app


def data_commands(task: Task) -> Iterator[NamedCommand]:
    return ((name, imported(function)) for name, function in task.data_commands.items())


def check(
    files: Annotated[list[str], argument("FILE...", "Text files, folders, or built-in names.")],
    column: Column = None,
    encoding: Encoding = None,
    json: Json = False,
) -> None:
    """Describe a text: size, damage, vocabulary, tokenizer."""
    from elman.evaluate.data_check import check as look
    from elman.text.converting import utf8_files

    (texts,) = in_columns(column, utf8_files(files, encoding))
    found = look(texts)
    if json:
        result_json(found)
    else:
        result(_report(found))
    if found["encoding_errors"]["lines"] or found["nul_bytes"]:
        raise typer.Exit(1)


def _report(found: dict[str, Any]) -> str:
    tokenizer, unseen = found["tokenizer"], found["out_of_vocabulary"]
    on_disk = found["bytes_on_disk"]
    packed = on_disk != found["bytes"]
    rows = [
        ("files", ", ".join(found["files"])),
        ("size", size(found["bytes"]) + (f" ({size(on_disk)} on disk)" if packed else "")),
        ("lines", f"{found['lines']:,} (longest: {found['longest_line']:,} characters)"),
        ("blank lines", number(found["blank_lines"])),
        ("repeated lines", number(found["duplicate_lines"])),
        ("words", f"{found['words']:,} ({found['word_types']:,} different)"),
        ("characters", f"{found['characters']:,} ({found['character_types']:,} different)"),
        ("tokenizer", f"{tokenizer['kind']}: {tokenizer['reason']}"),
        ("vocabulary", number(found["vocab_size"])),
        ("tokens", ("" if found["tokens_exact"] else "about ") + number(found["tokens"])),
        ("new words in the last tenth", _unseen(unseen["words"])),
        ("new characters in the last tenth", _unseen(unseen["characters"])),
    ]
    lines = [table(rows)]
    errors = found["encoding_errors"]
    if errors["lines"]:
        lines += ["", f"not UTF-8 ({counted(errors['lines'], 'line')}):"]
        lines += [
            f"  {e['file']}, line {e['line']:,}, column {e['column']:,}: "
            f"byte {e['byte']} in {e['text']!r}"
            for e in errors["first"][:SHOWN_ERRORS]
        ]
        if (others := errors["lines"] - SHOWN_ERRORS) > 0:
            lines.append(f"  and {counted(others, 'more line')}")
    if found["problems"]:
        lines += ["", *(f"problem: {problem}" for problem in found["problems"])]
    return "\n".join(lines)


def _unseen(found: dict[str, Any]) -> str:
    examples = ", ".join(visible(example) for example in found["examples"][:8])
    about = f"{found['tokens']:,} ({found['share']:.2%}), {found['types']:,} different"
    return f"{about}: {examples}" if examples else about
