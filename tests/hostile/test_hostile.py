"""What once did harm is refused with one sentence."""

from __future__ import annotations

import io
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from inputs import HOSTILE, NO_FILES

from elman.bench.faults.mutations.places import PLACES
from elman.bench.faults.specimens import Command, make_specimens
from elman.cli.main import run


def call(folder: Path, command: Command) -> tuple[int, str]:
    """Run a command in this process, in `folder`; return the exit code and stderr."""
    before, err = Path.cwd(), io.StringIO()
    os.chdir(folder)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(err):
            code = run(command)
    finally:
        os.chdir(before)
    return code, err.getvalue()


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def make(folder: Path, command: Command) -> None:
        code, err = call(folder, command)
        assert code == 0, err

    folder = tmp_path_factory.mktemp("sound")
    make_specimens(folder, make, ("words", "ngram"))
    return folder


@pytest.fixture
def copy(sound: Path, tmp_path: Path) -> Iterator[Path]:
    shutil.copytree(sound, tmp_path / "copy")
    yield tmp_path / "copy"
    shutil.rmtree(tmp_path / "copy")


@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_refused_with_one_sentence(name: str, copy: Path) -> None:
    hostile = HOSTILE[name]
    path = copy / hostile.file
    path.write_bytes(hostile.damage(path.read_bytes()))
    code, err = call(copy, hostile.command)
    assert code in (1, 2), err
    assert err.count("error: ") == 1, err
    assert hostile.says in err


@pytest.mark.parametrize("place", ["fifo", "endless"])
@pytest.mark.parametrize("file", NO_FILES)
def test_what_is_no_file_is_refused(file: str, place: str, copy: Path) -> None:
    PLACES[place](copy / file)
    signal.alarm(60)  # ends a process that waits for the pipe
    try:
        code, err = call(copy, NO_FILES[file])
    finally:
        signal.alarm(0)
    assert code in (1, 2), err
    assert err.count("error: ") == 1, err
