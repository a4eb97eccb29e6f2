"""kill -9 in the middle of a run, `--resume`, and the metrics are those of an undisturbed run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from elman.tasks.opening import open_run
from elman.testing import TOY_LABELLED, TOY_TEXT, TOY_TREEBANK
from elman.train import checkpoint
from elman.train.loop import STATE_FILE

SETTINGS = (
    *("--steps", "600", "--seed", "3", "--device", "cpu"),
    *("--set", "model.hidden_size=16", "--set", "model.embedding_size=8"),
    *("--set", "training.batch_size=4", "--set", "training.chunk_length=8"),
    *("--set", "training.report_every=7", "--set", "training.validate_every=50"),
    *("--set", "training.checkpoint_seconds=0.05", "--set", "training.sample_length=20"),
)
CLOCKWORK = {"seconds", "seconds_left", "tokens_per_second"}
PATIENCE = 300.0


def start(*arguments: object, task: str = "lm") -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "elman.cli", "train", task, *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def finish(*arguments: object, task: str = "lm") -> str:
    """Let a run come to its end; what it said."""
    process = start(*arguments, task=task)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors.decode()
    return errors.decode()


def metrics(out: Path) -> list[dict[str, Any]]:
    """Every line but for the time it took and the place where it is."""
    found = []
    for line in (out / "metrics.jsonl").read_text().splitlines():
        values = json.loads(line)
        for part in (values, values.get("summary", {})):
            for name in CLOCKWORK | {"out"}:
                part.pop(name, None)
        found.append(values)
    return found


def wait_for_lines(process: subprocess.Popen[bytes], out: Path, more_than: int) -> None:
    """Until the run has written so many lines of metrics, and a checkpoint."""
    deadline = time.monotonic() + PATIENCE
    path, state = out / "metrics.jsonl", out / "train" / "state.safetensors"
    while time.monotonic() < deadline:
        if state.exists() and path.exists() and path.read_bytes().count(b"\n") > more_than:
            return
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.01)
    pytest.fail("the run did not get going")


def test_metrics_after_kill_and_resume_equal_an_uninterrupted_run(
    toy: Path, tmp_path: Path
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    finish(toy, "--out", whole, *SETTINGS)

    process = start(toy, "--out", broken, *SETTINGS)
    wait_for_lines(process, broken, 5)
    process.kill()
    process.communicate()
    open_run(broken)  # whatever the moment, what is there can be used
    before = len(metrics(broken))

    process = start("--out", broken, "--resume")
    wait_for_lines(process, broken, before + 4)
    process.kill()
    process.communicate()
    open_run(broken)
    assert before < len(metrics(broken)) < len(metrics(whole))

    finish("--out", broken, "--resume")
    assert metrics(broken) == metrics(whole)
    assert (broken / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


SENTENCES = (
    *("--steps", "300", "--seed", "3", "--device", "cpu"),
    *("--set", "training.batch_size=4", "--set", "training.report_every=7"),
    *("--set", "training.validate_every=150", "--set", "training.checkpoint_seconds=0.05"),
)
SMALL_DECODER = (
    *("--set", "model.decoder.hidden_size=8", "--set", "model.decoder.embedding_size=8"),
    *("--set", "model.decoder.tied=false", "--set", "tokenizer.kind=word"),
    # The judge learns too: its weights are a part of what is resumed.
    *("--set", "objective.regime=professor_forcing", "--set", "objective.judge_size=4"),
)


@pytest.mark.parametrize(
    ("task", "settings"),
    [
        ("tagger", ("--set", "model.hidden_size=8", "--set", "model.character_size=4")),
        ("classifier", ("--set", "model.hidden_size=6", "--set", "model.embedding_size=6")),
        ("translator", SMALL_DECODER),
    ],
    ids=["tagger", "classifier", "translator"],
)
def test_sentence_tasks_after_kill_and_resume(
    toy: Path, tmp_path: Path, task: str, settings: tuple[str, ...]
) -> None:
    data = {
        "tagger": {"toy.conllu": TOY_TREEBANK},
        "classifier": {"toy.tsv": TOY_LABELLED},
        "translator": {"toy.en": TOY_TEXT, "toy.de": TOY_TEXT.upper()},
    }[task]
    for name, text in data.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    arguments = (*(tmp_path / name for name in data), *SENTENCES, *settings)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    finish(*arguments, "--out", whole, task=task)

    process = start(*arguments, "--out", broken, task=task)
    wait_for_lines(process, broken, 5)
    process.kill()
    process.communicate()
    open_run(broken)
    saved = checkpoint.read_header(broken / STATE_FILE)["progress"]["step"]
    assert 0 < saved < 300

    said = finish("--out", broken, "--resume", task=task)
    assert f"continuing after step {saved}" in said  # nothing before the checkpoint was lost
    assert metrics(broken) == metrics(whole)
    assert (broken / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_sigterm_saves_and_says_how_to_go_on(toy: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start(toy, "--out", out, *SETTINGS)
    wait_for_lines(process, out, 3)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    said = errors.decode()
    assert "Traceback" not in said
    assert f"elman train lm --out {out} --resume" in said
    open_run(out)
