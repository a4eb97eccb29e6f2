"""kill -9 in the middle of a run, `--resume`, and the metrics are those of an undisturbed run.

A run that is killed would go on for long, so that it cannot end first. The undisturbed run, and the
last resumption, end a little after the last checkpoint. The learning rate is constant: it does not
depend on the length. The test of schedules, which do, has one length, and its run kills itself at a
given step.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elman.base.documents import read_json_lines
from elman.tasks.opening import open_run
from elman.testing import TOY_LABELLED, TOY_TEXT, TOY_TREEBANK
from elman.train import checkpoint
from elman.train.loop import STATE_FILE

LONG = ("--steps", "1000000")
COMMON = (
    *("--seed", "3", "--device", "cpu", "--set", "schedule.kind=constant"),
    *("--set", "training.batch_size=4", "--set", "training.report_every=7"),
    *("--set", "training.validate_every=20", "--set", "training.checkpoint_seconds=0.05"),
)
SETTINGS = (
    *COMMON,
    *("--set", "model.hidden_size=16", "--set", "model.embedding_size=8"),
    *("--set", "training.chunk_length=8", "--set", "training.sample_length=20"),
)
Elman = Callable[..., Any]
SHARES = {"validation_share", "saving_share"}
NOT_COMPARED = {"seconds", "best_seconds", "seconds_left", "tokens_per_second", "out", *SHARES}
"""Fields that depend on the clock and the folder."""
KILLS_ITSELF = """
import os, signal, sys
from elman.cli.main import main
from elman.train.report import MetricsLog

last_step, write = int(sys.argv.pop(1)), MetricsLog.write

def write_and_die(log, report):
    write(log, report)
    if report.step >= last_step:
        os.kill(os.getpid(), signal.SIGKILL)

MetricsLog.write = write_and_die
main()
"""
PATIENCE = 300.0


def start(
    *arguments: object, task: str = "lm", program: tuple[str, ...] = ("-m", "elman.cli")
) -> subprocess.Popen[bytes]:
    command = [sys.executable, *program, "train", task, *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def metrics(out: Path, *, same_length: bool = False) -> list[dict[str, Any]]:
    """The lines of metrics, for comparison; `progress` depends on the length of the run."""
    found = []
    for values in read_json_lines(out / "metrics.jsonl"):
        for part in (values, values.get("summary", {})):
            for name in NOT_COMPARED if same_length else NOT_COMPARED | {"progress"}:
                part.pop(name, None)
        found.append(values)
    return found


def saved_step(out: Path) -> int:
    """The step of the last checkpoint, 0 without one."""
    if not (out / STATE_FILE).exists():
        return 0
    step: int = checkpoint.read_header(out / STATE_FILE)["progress"]["step"]
    return step


def wait_for_lines(
    process: subprocess.Popen[bytes], out: Path, more_than: int, *, after_step: int = 0
) -> None:
    """Wait for more than `more_than` lines of metrics, and a checkpoint after `after_step`."""
    deadline = time.monotonic() + PATIENCE
    path = out / "metrics.jsonl"
    while time.monotonic() < deadline:
        if saved_step(out) > after_step and path.read_bytes().count(b"\n") > more_than:
            return
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.01)
    pytest.fail("the run did not get going")


def kill(
    process: subprocess.Popen[bytes], out: Path, *, after_lines: int, after_step: int = 0
) -> int:
    """Kill a run; return the step of its last checkpoint."""
    wait_for_lines(process, out, after_lines, after_step=after_step)
    process.kill()
    process.communicate()
    open_run(out)  # whatever the moment, what is there can be used
    return saved_step(out)


def assert_equal_to_an_uninterrupted_run(
    elman: Elman, task: str, arguments: tuple[object, ...], broken: Path, saved: int
) -> None:
    """Let the killed run end after some more steps, beside a run of the same length."""
    whole, length = broken.with_name("whole"), ("--steps", saved + 25)
    finished = elman("train", task, *arguments, *length, "--out", whole)
    assert finished.code == 0, finished.err
    resumed = elman("train", task, "--out", broken, "--resume", *length)
    assert resumed.code == 0, resumed.err
    assert f"continuing after step {saved:,}" in resumed.err  # nothing before it was lost
    assert metrics(broken) == metrics(whole)
    assert (broken / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_metrics_after_kill_and_resume_equal_an_uninterrupted_run(
    elman: Elman, toy: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    process = start(toy, "--out", broken, *SETTINGS, *LONG)
    first = kill(process, broken, after_lines=5)
    lines = len(metrics(broken))
    resumed = start("--out", broken, "--resume")
    saved = kill(resumed, broken, after_lines=lines + 4, after_step=first)
    assert 0 < first < saved
    assert_equal_to_an_uninterrupted_run(elman, "lm", (toy, *SETTINGS), broken, saved)


def test_schedule_after_kill_and_resume(elman: Elman, toy: Path, tmp_path: Path) -> None:
    """Killed once in the warm-up and once in the cosine, with a checkpoint after each step."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    schedule = ("--set", "schedule.kind=cosine", "--set", "schedule.warmup_steps=20")
    often = ("--set", "training.checkpoint_seconds=0", "--steps", 60)
    arguments = (toy, *SETTINGS, *schedule, *often)
    for step, begin in ((14, arguments), (35, ("--resume",))):
        program = ("-c", KILLS_ITSELF, str(step))
        process = start(*begin, "--out", broken, program=program)
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == -signal.SIGKILL, errors.decode()
        assert saved_step(broken) == step - 1  # it died before the checkpoint of its last step
    elman("train", "lm", *arguments, "--out", whole).ok()
    resumed = elman("train", "lm", "--out", broken, "--resume").ok()
    assert "continuing after step 34" in resumed.err
    expected = metrics(whole, same_length=True)
    rates = [line["learning_rate"] for line in expected if line["kind"] == "step"]
    assert rates[0] < rates[1] < max(rates) > rates[-2] > rates[-1]
    assert metrics(broken, same_length=True) == expected
    assert (broken / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


SMALL_DECODER = (
    *("--set", "model.decoder.hidden_size=8", "--set", "model.decoder.embedding_size=8"),
    *("--set", "model.decoder.tied=false", "--set", "tokenizer.kind=word"),
    *("--set", "training.sample_length=10"),
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
    elman: Elman, tmp_path: Path, task: str, settings: tuple[str, ...]
) -> None:
    data = {
        "tagger": {"toy.conllu": TOY_TREEBANK},
        "classifier": {"toy.tsv": TOY_LABELLED},
        "translator": {"toy.en": TOY_TEXT, "toy.de": TOY_TEXT.upper()},
    }[task]
    for name, text in data.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    arguments = (*(tmp_path / name for name in data), *COMMON, *settings)
    broken = tmp_path / "broken"
    saved = kill(start(*arguments, *LONG, "--out", broken, task=task), broken, after_lines=5)
    assert_equal_to_an_uninterrupted_run(elman, task, arguments, broken, saved)


def test_sigterm_saves_and_says_how_to_go_on(toy: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start(toy, "--out", out, *SETTINGS, *LONG)
    wait_for_lines(process, out, 3)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    said = errors.decode()
    assert "Traceback" not in said
    assert f"elman train lm --out {out} --resume" in said
    open_run(out)


AVERAGED = (
    *(*SETTINGS, "--set", "optimiser.kind=sgd", "--set", "optimiser.learning_rate=2"),
    *("--set", "optimiser.average=two_tailed", "--set", "optimiser.average_every=3"),
    *("--set", "training.shuffle_lanes=true", "--set", "training.reset_state=0.1"),
    *("--set", "training.report_every=10"),  # so that the end of a run adds no report
)


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "rounded"])
def test_a_packed_and_unpacked_run_follows_the_same_curve(
    elman: Elman, toy: Path, tmp_path: Path, exact: bool
) -> None:
    whole, begun, carried = (tmp_path / name for name in ("whole", "begun", "carried"))
    elman("train", "lm", toy, *AVERAGED, "--steps", 90, "--out", whole).ok()
    elman("train", "lm", toy, *AVERAGED, "--steps", 40, "--out", begun).ok()
    options = ("--exact",) if exact else ()
    elman("pack", begun, tmp_path / "parts", "--part-mib", 0.004, *options).ok()
    elman("unpack", tmp_path / "parts", "--out", carried).ok()
    resumed = elman("train", "lm", "--out", carried, "--resume", "--trust-data", "--steps", 90)
    assert "continuing after step 40" in resumed.ok().err
    ours, theirs = (later_losses(out, 40) for out in (carried, whole))
    assert ours.keys() == theirs.keys()
    assert len(ours) > 6
    assert ours == pytest.approx(theirs, rel=0 if exact else 1e-3)
    assert exact or ours != theirs


def later_losses(out: Path, step: int) -> dict[tuple[str, int], float]:
    """The losses of training and validation in the reports after a step."""
    return {
        (name, values["step"]): values[name]
        for values in metrics(out)
        for name in ("loss", "valid_loss")
        if values["kind"] in ("step", "valid") and values["step"] > step and name in values
    }
