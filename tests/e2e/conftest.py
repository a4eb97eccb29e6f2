"""Commands as a user types them, on the toy corpus, with one small model trained per session."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from elman.base.cache import cache_folder
from elman.base.documents import read_json_lines
from elman.bench.faults.forking import Forks
from elman.bench.faults.outcomes import Plan
from elman.cli.main import run
from elman.testing import TOY_TEXT

SMALL = (
    *("--set", "model.hidden_size=32", "--set", "model.embedding_size=16"),
    *("--set", "model.tied=false"),
    *("--set", "training.batch_size=8", "--set", "training.chunk_length=32"),
    *("--set", "schedule.warmup_steps=0", "--set", "optimiser.learning_rate=0.02"),
    *("--set", "model.dropout_hidden=0", "--set", "model.dropout_output=0", "--seed", "1"),
    *("--set", "training.sample_length=20"),
)
"""Settings that make a training run a matter of a second."""


@dataclass(frozen=True)
class Result:
    """What a command did."""

    code: int
    out: str
    err: str

    def ok(self) -> Result:
        """This result, of a command that must succeed."""
        assert self.code == 0, self.err
        return self

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> tuple[str, str]:
        """The sentence and the hint; the last two lines of stderr must be those."""
        lines = self.err.rstrip("\n").split("\n")
        assert lines[-2].startswith("error: "), self.err
        assert lines[-1].startswith("hint: "), self.err
        assert "Traceback" not in self.err
        return lines[-2].removeprefix("error: "), lines[-1].removeprefix("hint: ")


Elman = Callable[..., Result]


def call(*arguments: object, stdin: str | bytes = "") -> Result:
    """Run one command in this process."""
    out, err = io.StringIO(), io.StringIO()
    data = stdin.encode() if isinstance(stdin, str) else stdin
    before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(data))
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = run([str(argument) for argument in arguments])
    finally:
        sys.stdin = before
    return Result(code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="session")
def elman() -> Elman:
    """Runs one command; its arguments are the command line's."""
    return call


@pytest.fixture(scope="session")
def small() -> tuple[str, ...]:
    """Arguments that make a training run small."""
    return SMALL


@pytest.fixture(scope="session")
def write(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Writes a file of this name and content in a new folder."""

    def write(name: str, content: str) -> Path:
        path = tmp_path_factory.mktemp("written") / name
        path.write_text(content, encoding="utf-8")
        return path

    return write


@pytest.fixture(scope="session")
def reports() -> Callable[[Path], list[dict[str, Any]]]:
    """Reads the reports of a run folder."""

    def read(run: Path) -> list[dict[str, Any]]:
        return read_json_lines(run / "metrics.jsonl")

    return read


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the toy corpus in it."""
    folder = tmp_path_factory.mktemp("e2e")
    # Punctuation joined to the words makes it ordinary text, not a pre-tokenised corpus.
    (folder / "toy.txt").write_text(TOY_TEXT.replace(" .", "."), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def toy(folder: Path) -> Path:
    return folder / "toy.txt"


def _train(folder: Path, name: str, *arguments: object) -> Path:
    out = folder / "runs" / name
    call("train", "lm", folder / "toy.txt", "--out", out, *SMALL, *arguments).ok()
    return out


@pytest.fixture(scope="session")
def model(folder: Path) -> Path:
    """A character model."""
    return _train(folder, "chars", "--steps", 40, "--set", "tokenizer.kind=char")


@pytest.fixture(scope="session")
def words(folder: Path) -> Path:
    """A word model."""
    return _train(folder, "words", "--steps", 30, "--set", "tokenizer.kind=word")


@pytest.fixture(scope="session")
def words_too(folder: Path, words: Path) -> Path:
    """A second word model with the first one's tokenizer."""
    tokenizer = ("--set", f"tokenizer.file={words / 'tokenizer.json'}")
    return _train(folder, "words-too", "--steps", 10, *tokenizer, "--set", "model.cell=gru")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plan]:
    """A part of the campaign `elman bench faults`."""
    code = os.environ.get("NUMBA_CACHE_DIR") or str(cache_folder() / "numba")
    with Forks(1, {"NUMBA_CACHE_DIR": code}) as forks:
        yield Plan(tmp_path_factory.mktemp("faults"), forks, "crash-lm", quick=True)
