"""Text of others on a terminal: no control character is executed; a pipe gets the exact bytes."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

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
SEPARATOR = "====="
RUN_ALL = f"""
import json, sys
from elman.cli.main import run
for arguments in json.loads(sys.argv[1]):
    run(arguments)
    print({SEPARATOR!r}, flush=True)
"""
"""Runs several commands in one process, which imports torch once."""


def test_controls_are_visible_on_a_terminal(model: Path) -> None:
    text = model.parent / "text.txt"
    text.write_text(f"{HOSTILE}\n")
    commands: list[tuple[object, ...]] = [
        ("generate", model, "", *GENERATE),
        ("generate", model, HOSTILE, "--num-samples", 2, "--echo", *GENERATE),
        ("next", model, ""),
        ("score", model, text),
        ("info", f"no such {HOSTILE}"),
        ("train", "lm", f"no such {HOSTILE}"),
        (f"no-such-{HOSTILE}",),
        ("convert", model, model.parent / HOSTILE / "x"),
        ("generate", model, "", *GENERATE, "--json"),
    ]
    given = json.dumps([list(map(str, command)) for command in commands])
    shown = on_terminal(sys.executable, "-c", RUN_ALL, given).split(f"{SEPARATOR}\n")
    for command, found in zip(commands, shown, strict=False):
        assert {c for c in found if not c.isprintable()} <= {"\n", "\t"}, (command, found)
        assert "owned" in found, command
    assert len(shown) == len(commands) + 1
    assert HOSTILE in json.loads(shown[-2])[0]["text"]  # still JSON


def test_a_pipe_gets_every_byte(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(f"a {HOSTILE} b\n", encoding="utf-8")
    for command in (("data", "words", tmp_path / "text.txt"), ("info", f"no such {HOSTILE}")):
        done = subprocess.run([*COMMAND, *map(str, command)], capture_output=True, timeout=120)
        controls = [c for c in HOSTILE if not c.isprintable()]
        assert [c for c in (done.stdout + done.stderr).decode() if c in controls] == controls


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
