"""The examples run, on the toy corpus and for a few updates."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elman import api

EXAMPLES = Path(__file__).parents[2] / "examples"


def main_of(name: str) -> Callable[..., Any]:
    main: Callable[..., Any] = runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]
    return main


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_example_is_tested() -> None:
    tested = Path(__file__).read_text(encoding="utf-8")
    names = [path.stem for path in EXAMPLES.glob("*.py")]
    assert len(names) >= 4
    assert all(f'main_of("{name}")' in tested for name in names)


def test_train_and_sample(
    toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train_lm = api.train_lm

    def quick(text: str, *, minutes: float, **kwargs: Any) -> api.LM:
        assert minutes == 2.0
        return train_lm(text, steps=3, settings={"model.hidden_size": 16}, **kwargs)

    monkeypatch.setattr(api, "train_lm", quick)
    main_of("train_and_sample")(str(toy))
    printed = capsys.readouterr().out
    assert "step 3: validation perplexity" in printed
    assert "runs/lm-toy: validation perplexity" in printed
    assert "a sample:" in printed


def test_surprisal_of_sentences(words: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main_of("surprisal_of_sentences")(str(words))
    printed = capsys.readouterr().out
    assert printed.count("bits") == 15
    ranked = printed.split("from likely to unlikely:")[1].strip().split("\n")
    logprobs = [float(line.split()[0]) for line in ranked]
    assert logprobs == sorted(logprobs, reverse=True)


def test_own_cell(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main_of("own_cell")(str(toy), 30)
    printed = capsys.readouterr().out
    assert "the contract holds" in printed
    perplexity = float(printed.split("perplexity of the text: ")[1].split()[0])
    assert perplexity < 15  # it learns: there are 27 characters


def test_demo(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    length = ("--steps", "3", "--set", "model.hidden_size=16")
    assert main_of("demo")(str(toy), length) == 0
    printed = capsys.readouterr().out
    assert printed.count("$ elman") == 6
    assert "validation perplexity" in printed
    assert "bits per byte" in printed


def test_own_task(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    main_of("own_task")("runs/numbers", 30)
    printed = capsys.readouterr().out
    assert "mean error" in printed
    assert "letters a" in printed


def test_own_task_by_the_ordinary_commands(
    tmp_path: Path, elman: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trained, resumed, evaluated and explained by name; a run folder alone runs no code."""
    data = tmp_path / "letters.tsv"
    data.write_text("".join(f"{'ab' * (i % 7)}c\t{i % 7}\n" for i in range(200)))
    monkeypatch.syspath_prepend(str(EXAMPLES))
    out = str(tmp_path / "run")
    trained = elman("train", "own_task:TASK", str(data), "--steps", "20", "--out", out, "--json")
    assert trained.code == 0, trained.err
    more = elman("train", "own_task:TASK", "--out", out, "--steps", "40", "--resume", "--json")
    assert more.code == 0, more.err
    assert json.loads(more.out)["steps"] == 40
    assert elman("evaluate", out, str(data), "--json").code == 0
    assert "number" in elman("info", out).out
    script = f"import elman; print(elman.load({out!r}))"
    environment = {"PYTHONPATH": f"{EXAMPLES}:{EXAMPLES.parent / 'src'}", "PATH": "/usr/bin"}
    refused = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment
    )
    assert "code from outside Elman" in refused.stderr
    allowed = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={**environment, "ELMAN_PLUGINS": "own_task"},
    )
    assert "Number" in allowed.stdout, allowed.stderr
