"""The command that is made alone is the one among all commands."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from elman.cli.main import COMMANDS, MORE_COMMANDS, program
from elman.tasks import TASKS, task_named

GROUPS = [name for name in TASKS if task_named(name).commands]


def described(command: Any, words: list[str]) -> Iterator[tuple[Any, ...]]:
    """Yield the words and the options of a command and of those in it."""
    parameters = [(p.name, p.opts, getattr(p, "help", "")) for p in command.params]
    yield words, command.help, command.epilog, parameters
    for name, inner in getattr(command, "commands", {}).items():
        yield from described(inner, [*words, name])


@pytest.fixture(scope="module")
def everything() -> Any:
    return program()


@pytest.mark.parametrize("name", [*COMMANDS, *MORE_COMMANDS, *GROUPS])
def test_it_is_the_same(name: str, everything: Any) -> None:
    alone = program((), [name, "--help"])
    assert list(alone.commands) == [name]
    assert list(described(alone.commands[name], [name])) == list(
        described(everything.commands[name], [name])
    )


@pytest.mark.parametrize("task", TASKS)
def test_training_one_task_is_the_same(task: str, everything: Any) -> None:
    group = program((), ["train", task]).commands["train"]
    assert list(group.commands) == [task]
    all_tasks = everything.commands["train"].commands
    assert list(described(group.commands[task], [])) == list(described(all_tasks[task], []))


@pytest.mark.parametrize("words", [[], ["--help"], ["scoer"], ["find", "x"]])
def test_other_words_make_all(words: list[str], everything: Any) -> None:
    assert list(program((), words).commands) == list(everything.commands)


def test_counting_does_not_import_what_other_commands_need() -> None:
    code = (
        "import sys; from elman.cli.main import program; program((), ['train', 'ngram']);"
        "print(*[name for name in sys.modules if name.startswith('elman.bench')])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ""
