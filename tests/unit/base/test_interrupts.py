"""Ctrl-C ends a program in code that swallows it, in imports and in cleanups."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

START = """
import sys, time
from contextlib import suppress
from pathlib import Path
from elman.base.files import owned_folder
from elman.base.interrupts import guarded

@guarded
def main():
"""
SWALLOWED = """
    with suppress(BaseException):
        print("here", flush=True)
        time.sleep(60)
    time.sleep(60)
"""
IN_AN_IMPORT = """
    import slow
    time.sleep(60)
"""
WITH_FILES = """
    with owned_folder(Path()):
        import slow
        Path("imported").touch()
        time.sleep(60)
"""
ENTERED_ALONE = """
    entered = owned_folder(Path())
    entered.__enter__()
    print("here", flush=True)
    time.sleep(60)
"""
SLOW = """
import time
print("here", flush=True)
try:
    time.sleep({seconds})
except BaseException:
    print("disturbed", flush=True)
"""


@pytest.mark.parametrize(
    ("program", "seconds"),
    [(SWALLOWED, 0), (IN_AN_IMPORT, 60), (WITH_FILES, 0.3), (ENTERED_ALONE, 0)],
)
def test_ctrl_c_ends_the_program(program: str, seconds: float, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW.format(seconds=seconds))
    paths = [str(tmp_path), *filter(None, sys.path)]
    with subprocess.Popen(
        [sys.executable, "-c", f"{START}{program}\nmain()"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        process.send_signal(signal.SIGINT)
        printed, said = process.communicate(timeout=50)
    assert (process.returncode, printed, said) == (130, "", "interrupted\n")
    left = {path.name for path in tmp_path.iterdir()} - {"imported"}
    assert left == {"slow.py"}
