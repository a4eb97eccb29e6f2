"""Text of others on a terminal: no control character is executed; a pipe gets the exact bytes."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

COMMAND = (sys.executable, "-m", "elman.cli")
CLEAR, TITLE, BACKWARDS = "\x1b[2J", "\x9d0;owned\x07", "\u202egnp.exe\u2066"
HOSTILE = f"{CLEAR}{TITLE}{BACKWARDS}"
SHOWN = r"\x1b[2J\x9d0;owned\x07\u202egnp.exe\u2066"
ARPA = f"""\\data\\
ngram 1=3

\\1-grams:
-9\t<unk>
-1\t</s>
-0.1\t{HOSTILE}

\\end\\
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "a.arpa"
    path.write_text(ARPA, encoding="utf-8")
    return path


def on_terminal(*command: object) -> str:
    """What a program writes to stdout and stderr if both are a terminal."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm", "COLUMNS": "300"}
    child = subprocess.Popen(
        list(map(str, command)), stdin=follower, stdout=follower, stderr=follower, env=environment
    )
    os.close(follower)
    written = b""
    try:
        while piece := os.read(leader, 1 << 16):
            written += piece
    except OSError:  # how Linux says that the other end is closed
        pass
    os.close(leader)
    child.wait(timeout=120)
    return written.decode().replace("\r\n", "\n")


GENERATE = ("--max-tokens", 3, "--seed", 1)
Commands = Callable[[Path], tuple[object, ...]]


@pytest.mark.parametrize(
    "arguments",
    [
        lambda model: ("generate", model, "", *GENERATE),
        lambda model: ("generate", model, HOSTILE, "--num-samples", 2, "--echo", *GENERATE),
        lambda model: ("next", model, ""),
        lambda model: ("score", model, "--text", HOSTILE),
        lambda model: ("info", f"no such {HOSTILE}"),
        lambda model: ("train", "lm", f"no such {HOSTILE}"),
        lambda model: (f"no-such-{HOSTILE}",),
        lambda model: ("convert", model, model.parent / HOSTILE / "x"),
    ],
)
def test_controls_are_visible_on_a_terminal(model: Path, arguments: Commands) -> None:
    found = on_terminal(*COMMAND, *arguments(model))
    assert {c for c in found if not c.isprintable()} <= {"\n", "\t"}, found
    assert "owned" in found


def test_json_on_a_terminal_is_still_json(model: Path) -> None:
    found = on_terminal(*COMMAND, "generate", model, "", *GENERATE, "--json")
    assert {c for c in found if not c.isprintable()} <= {"\n"}
    assert HOSTILE in json.loads(found)[0]["text"]


def test_a_pipe_gets_every_byte(model: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "generate", str(model), "", *map(str, GENERATE)],
        stdout=subprocess.PIPE,
        check=True,
        timeout=120,
    )
    assert HOSTILE.encode() in done.stdout


def test_training_shows_samples_without_controls_and_markup() -> None:
    script = f"""
from elman.terminal.progress import TerminalDisplay
display = TerminalDisplay()
display.say({HOSTILE!r} + "[red]name[/red] :heart:")
display.update({HOSTILE!r} + "[bold]line", 0.5)
display.close()
"""
    found = on_terminal(sys.executable, "-c", script)
    assert f"{SHOWN}[red]name[/red] :heart:" in found
    assert f"{SHOWN}[bold]line" in found
    assert not any(text in found for text in (CLEAR, TITLE, BACKWARDS))
