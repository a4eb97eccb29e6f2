"""`elman convert RUN model.py`: a program that imports torch alone gives the same numbers."""

from __future__ import annotations

import ast
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elman import load

Elman = Callable[..., Any]
TEXT = "the student opened the book"
QUICK = ("--steps", 1, "--set", "model.kernel=reference", "--set", "training.sample_length=0")
"""Nothing is compiled for these runs, and the numbers are those of the reference kernel."""
KINDS = {
    "lstm": (),
    "lstm peephole projected": ("model.peephole=true", "model.projection_size=7"),
    "lstm capped, summed": ("model.cap_input=true", "model.sum_layers=true", "model.num_layers=2"),
    "gru": ("model.cell=gru",),
    "gru of the lectures": ("model.cell=gru", "model.gru_form=reset_before"),
    "rnn, residual": ("model.cell=rnn", "model.join=residual", "model.num_layers=2"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_numbers_are_those_of_elman(
    kind: str, elman: Elman, toy: Path, small: Any, tmp_path: Path
) -> None:
    settings = [word for setting in KINDS[kind] for word in ("--set", setting)]
    how = (*small, *QUICK, "--set", "tokenizer.kind=word", *settings)
    elman("train", "lm", toy, "--out", tmp_path / "run", *how).ok()
    check_program(elman, tmp_path / "run", tmp_path / "model.py")


def check_program(elman: Elman, run: Path, file: Path) -> dict[str, Any]:
    elman("convert", run, file).ok()
    program = runpy.run_path(str(file))
    lm = load(run)
    ids = lm.tokenizer.encode(TEXT).tolist()
    expected = [row.surprisal for row in lm.surprisal(TEXT, base="e", include_end=False)]
    assert [-p for p in program["logprobs"](ids)] == pytest.approx(expected, abs=1e-5)
    made = program["generate"](ids, 5, temperature=0)[len(ids) :]
    stream = lm.tokenizer.stream(after=ids[-1])
    text = "".join(map(stream.push, made)) + stream.finish()
    assert text == lm.generate(TEXT, max_tokens=5, temperature=0)
    assert program["TOKENS"] == lm.tokenizer.spellings()
    return program


def test_characters(elman: Elman, model: Path, tmp_path: Path) -> None:
    program = check_program(elman, model, tmp_path / "chars.py")
    assert program["encode"](TEXT) == load(model).tokenizer.encode(TEXT).tolist()


def test_the_program_imports_torch_alone_and_is_short(
    elman: Elman, words: Path, tmp_path: Path
) -> None:
    elman("convert", words, tmp_path / "model.py").ok()
    text = (tmp_path / "model.py").read_text(encoding="utf-8")
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import)]
    assert [alias.name for node in nodes for alias in node.names] == ["torch"]
    assert not any(isinstance(node, ast.ImportFrom) for node in ast.walk(ast.parse(text)))
    assert len(text.splitlines()) < 130
    assert all(len(line) <= 100 for line in text.splitlines())
    (tmp_path / "elsewhere").mkdir()
    for name in ("model.py", "model.safetensors"):
        shutil.move(tmp_path / name, tmp_path / "elsewhere" / name)
    command = [sys.executable, tmp_path / "elsewhere" / "model.py"]
    done = subprocess.run(command, input=TEXT, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = list(load(words).surprisal(TEXT, include_end=False))
    assert [line.split()[1] for line in done.stdout.splitlines()[: len(rows)]] == [
        f"{row.surprisal:.4f}" for row in rows
    ]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (("model.layer_norm=true",), "layer normalisation"),
        (("model.cell=mingru",), "mingru"),
        (("model.head.kind=mixture",), "mixture"),
    ],
)
def test_what_has_no_program_is_refused(
    settings: tuple[str, ...], named: str, elman: Elman, toy: Path, small: Any, tmp_path: Path
) -> None:
    chosen = [word for setting in settings for word in ("--set", setting)]
    elman("train", "lm", toy, "--out", tmp_path / "run", *small, *QUICK, *chosen).ok()
    message, hint = elman("convert", tmp_path / "run", tmp_path / "model.py").error
    assert named in message
    assert "lstm" in hint
    assert not (tmp_path / "model.py").exists()


def test_nothing_is_replaced(elman: Elman, words: Path, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("mine")
    message, _ = elman("convert", words, tmp_path / "model.py").error
    assert "model.safetensors already exists" in message
