"""Several processes that train one model, as torchrun starts them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from elman.testing import TOY_LABELLED, TOY_TEXT, TOY_TREEBANK
from elman.train import checkpoint

Reports = Callable[[Path], list[dict[str, Any]]]
Runs = Callable[..., list["Ended"]]

STEPS = ("--steps", "6", "--set", "training.report_every=1", "--seed", "1")
NO_SAMPLE = ("--set", "training.sample_length=0")
NO_DROPOUT = tuple(
    f"--set=model.dropout_{where}=0" for where in ("embedding", "input", "hidden", "output")
)
LM = (
    *("--set", "model.hidden_size=8", "--set", "model.embedding_size=8"),
    *("--set", "training.chunk_length=7", "--set", "model.weight_drop=0", *NO_DROPOUT, *NO_SAMPLE),
)


PROGRAM = """
import json, os, sys, traceback
from elman.cli.main import main, run

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
run(sys.argv[1:])  # imports what training imports

def become(job):
    code = 1
    try:
        os.chdir(job["folder"])
        os.environ.update(job["environment"])
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        exec(job["first"], {})
        sys.argv = ["elman", *job["arguments"]]
        main()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

for line in sys.stdin:
    jobs, children = json.loads(line), []
    for job in jobs:
        children.append(os.fork())
        if not children[-1]:
            become(job)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    answers.write(json.dumps(codes) + "\\n")
    answers.flush()
"""
"""Forks the processes of a command: imports take longer than the commands of these tests."""


DIES = """
import os
from elman.train import loop

carry_out = loop._Loop._carry_out

def die(self, *numbers):
    if self.progress.step == 20:
        os.kill(os.getpid(), 9)
    carry_out(self, *numbers)

loop._Loop._carry_out = die
"""
"""Ends a process in the middle of the training."""


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    folder = tmp_path_factory.mktemp("forks")
    (folder / "my.txt").write_text(TOY_TEXT, encoding="utf-8")
    warm_up = ("train", "lm", folder / "my.txt", *LM, "--steps", "1", "--out", folder / "out")
    command = [sys.executable, "-c", PROGRAM, *map(str, warm_up)]
    pipe = subprocess.PIPE
    # A process that is not forked sets this itself, before it imports torch.
    env = os.environ | {"TORCH_CPP_LOG_LEVEL": "ERROR"}
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=env
    ) as server:
        yield server
        server.communicate()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "my.txt").write_text(TOY_TEXT, encoding="utf-8")
    (tmp_path / "labelled.tsv").write_text(TOY_LABELLED, encoding="utf-8")
    (tmp_path / "train.conllu").write_text(TOY_TREEBANK, encoding="utf-8")
    lines = TOY_TEXT.splitlines(keepends=True)[:40]
    (tmp_path / "a.en").write_text("".join(lines), encoding="utf-8")
    (tmp_path / "a.de").write_text("".join(lines).upper(), encoding="utf-8")
    return tmp_path


@pytest.fixture
def run(forks: subprocess.Popen[str], place: Path) -> Runs:
    """Runs a command in several processes, numbered as torchrun does; `first` are lines of
    Python for each."""

    def run(
        size: int,
        *arguments: object,
        job: str = "none",
        first: Sequence[str] = ("",) * 3,
    ) -> list[Ended]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size)}
        shared |= {"LOCAL_WORLD_SIZE": str(size), "TORCHELASTIC_RUN_ID": job}
        jobs = []
        for rank in range(size):
            (place / f"process-{rank}").mkdir(exist_ok=True)
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            jobs.append(
                {
                    "arguments": [str(argument) for argument in arguments],
                    "folder": str(place / f"process-{rank}"),
                    "environment": own | shared if size > 1 else {},
                    "first": first[rank],
                }
            )
        assert forks.stdin is not None
        assert forks.stdout is not None
        forks.stdin.write(json.dumps(jobs) + "\n")
        forks.stdin.flush()
        codes = json.loads(forks.stdout.readline())
        texts = [[(Path(j["folder"]) / name).read_text() for name in ("out", "err")] for j in jobs]
        return [Ended(code, *text) for code, text in zip(codes, texts, strict=True)]

    return run


def losses(reports: Reports, out: Path) -> list[float]:
    return [r["loss"] for r in reports(out) if r["kind"] == "step"]


TASKS: dict[str, tuple[str, ...]] = {
    # A batch of 5 is divided unevenly, and the last chunk of an epoch is short.
    "adaptive": (
        *("lm", "../my.txt", *LM, "--set", "training.batch_size=5"),
        *("--set", "training.accumulate=5", "--set", "model.head.kind=adaptive"),
        *("--set", "model.tied=false", "--set", "optimiser.average=triggered"),
        *("--set", "optimiser.average_latest=2", "--set", "optimiser.restarts=1"),
        *("--set", "training.validate_every=1", "--set", "training.vary_chunks=true"),
    ),
    # Batches of sentences of equal length may have fewer rows than there are processes.
    "tagger": (
        *("tagger", "../train.conllu", "--set", "training.batch_size=3"),
        *("--set", "model.hidden_size=8", "--set", "model.word_dropout=0", *NO_DROPOUT[1:]),
    ),
    "translator": (
        *("translator", "../a.en", "../a.de", *NO_SAMPLE, "--set", "training.batch_size=8"),
        *("--set", "model.decoder.hidden_size=8", "--set", "model.decoder.embedding_size=8"),
        *(setting.replace("model.", "model.decoder.") for setting in NO_DROPOUT),
    ),
    "classifier": (
        *("classifier", "../labelled.tsv", "--set", "training.batch_size=4"),
        *("--set", "model.hidden_size=8", *NO_DROPOUT),
    ),
    "elmo": (
        *("elmo", "../my.txt", "--set", "training.batch_size=4", "--set", "model.dropout=0"),
        *("--set", "model.hidden_size=8", "--set", "model.projection_size=8"),
        # Rounding alone changes the sign of Adam's first updates where a gradient is nearly 0.
        *("--set", "optimiser.kind=sgd", "--set", "optimiser.learning_rate=0.2"),
    ),
}
SLOW = ("translator", "classifier", "elmo")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in TASKS]
)
def test_losses_are_those_of_one_process(
    run: Runs, place: Path, reports: Reports, name: str
) -> None:
    out = place / "out"
    (alone,) = run(1, "train", *TASKS[name], *STEPS, "--out", out / "1")
    assert alone.code == 0, alone.err
    size = 3 if name in ("adaptive", "tagger") else 2
    ended = run(size, "train", *TASKS[name], *STEPS, "--out", out / "n")
    assert [one.code for one in ended] == [0] * size, ended
    assert all(not one.out and not one.err for one in ended[1:])  # the leader alone writes
    expected = losses(reports, out / "1")
    assert len(expected) == 6
    assert losses(reports, out / "n") == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("dropout", [0, 0.5])
def test_a_run_goes_on_in_another_number_of_processes(
    run: Runs, place: Path, reports: Reports, dropout: float
) -> None:
    command = ("train", "lm", "../my.txt", *LM, "--set", "training.batch_size=5")
    command += ("--set", "schedule.kind=constant", "--set", f"model.dropout_output={dropout}")
    sampled = ("--set", "model.head.kind=sampled", "--set", "model.head.num_samples=4")
    command += sampled if dropout else ()
    # Without random numbers, the losses are those of any number; with them, of the same number.
    sizes = (2, 2) if dropout else (2, 3)
    whole = run(sizes[0] if dropout else 1, *command, *STEPS, "--out", place / "whole")
    first = run(sizes[0], *command, *STEPS, "--steps", "3", "--out", place / "parts")
    ended = run(sizes[1], *command, *STEPS, "--out", place / "parts", "--resume")
    for one in (*whole, *first, *ended):
        assert one.code == 0, one.err
    expected = losses(reports, place / "whole")
    assert len(expected) == 6
    assert losses(reports, place / "parts") == pytest.approx(expected, rel=1e-4)
    tensors, header = checkpoint.read(place / "parts" / "train" / "state.safetensors")
    assert header["ranks"] == sizes[1]
    carried = [tensor for name, tensor in tensors.items() if name.startswith("carried.")]
    assert {len(tensor) for tensor in carried} == {5}  # all lanes, for any number of processes


def test_a_killed_process_ends_all_and_another_number_goes_on(
    run: Runs, place: Path, reports: Reports
) -> None:
    command = ("train", *TASKS["adaptive"], "--out", place / "out", "--steps", "100000")
    often = ("--set", "training.checkpoint_seconds=0")
    leader, killed = run(2, *command, *often, job="job 7", first=("", DIES))
    assert killed.code == -9
    assert leader.code == 1
    assert "error: another of the 2 processes has ended" in leader.err
    assert "--max-restarts" in leader.err
    _, header = checkpoint.read(place / "out" / "train" / "state.safetensors")
    step = header["progress"]["step"]
    assert (header["ranks"], step) == (2, 20)
    # torchrun starts the same command again; here on three machines, with a length that ends.
    command = (*command[:-1], str(step + 2))
    ended = run(3, *command, *often, job="job 7")
    assert [one.code for one in ended] == [0, 0, 0], ended
    assert f"continuing after step {step:,}" in ended[0].err
    numbers = [r["step"] for r in reports(place / "out") if r["kind"] == "step"]
    assert numbers[-1] == step + 2
    assert numbers == sorted(set(numbers))
    # Another command does not continue it.
    ended = run(2, *command, job="job 8")
    assert [one.code for one in ended] == [2, 1]
    assert "already holds a run" in ended[0].err
    assert not ended[1].err


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ("data", 1, "has another training data than process 0"),
        ("missing", 1, "does not exist"),
        ("batch", 2, "a batch of 1 cannot be divided among 2 processes"),
        ("counts", 2, "is fitted by one process"),
        ("stdin", 2, "cannot read stdin"),
        ("folder", 2, "torchrun needs the run folder"),
    ],
)
def test_wrong_set_ups_end_in_a_sentence(
    run: Runs, place: Path, change: str, code: int, words: str
) -> None:
    # On another machine, the same path is another file, or none.
    other = place / "other.txt"
    if change != "missing":
        other.write_text(TOY_TEXT.upper(), encoding="utf-8")
    elsewhere = "from elman.tasks.language_model import task; from pathlib import Path\n"
    elsewhere += f"task.expand = lambda names: [Path({str(other)!r})]"
    first = ("", elsewhere if change in ("data", "missing") else "")
    command = ["train", "lm", "../my.txt", *LM, *STEPS]
    if change == "batch":
        command += ["--set", "training.batch_size=1"]
    elif change == "counts":
        command = ["train", "ngram", "../my.txt"]
    elif change == "stdin":
        command[2] = "-"
    if change != "folder":
        command += ["--out", str(place / "out")]
    leader, follower = run(2, *command, first=first)
    assert leader.code == code, leader.err
    assert words in leader.err.rstrip().splitlines()[-2]
    assert follower.code == 1
    assert not follower.err
    assert not (place / "out").exists()


TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")


@pytest.mark.slow
def test_torchrun_starts_a_killed_process_again(place: Path, reports: Reports) -> None:
    out, inside = place / "out", place / "inside"
    inside.mkdir()
    command = [*TORCHRUN, "--standalone", "--max-restarts", "2", "-m", "elman"]
    command += ["train", *TASKS["adaptive"], "--steps", "3000", "--out", str(out)]
    command += ["--set", "training.checkpoint_seconds=0.2"]
    with subprocess.Popen(command, cwd=inside, stderr=subprocess.PIPE, text=True) as torchrun:
        assert torchrun.stderr is not None
        lines: list[str] = []
        for line in torchrun.stderr:
            lines.append(line)
            if "kernels:" in line and not any("continuing" in each for each in lines):
                children = Path(f"/proc/{torchrun.pid}/task/{torchrun.pid}/children").read_text()
                os.kill(int(children.split()[-1]), 9)
    assert torchrun.returncode == 0, "".join(lines)
    assert any("continuing after step" in line for line in lines)
    assert reports(out)[-1]["kind"] == "done"


@pytest.mark.slow
def test_a_process_that_hangs_ends_all_within_a_minute(place: Path) -> None:
    inside = place / "inside"
    inside.mkdir()
    command = [*TORCHRUN, "--standalone", "-m", "elman", "train", *TASKS["adaptive"]]
    command += ["--steps", "1000000", "--out", str(place / "out")]
    with subprocess.Popen(command, cwd=inside, stderr=subprocess.PIPE, text=True) as torchrun:
        assert torchrun.stderr is not None
        lines: list[str] = []
        for line in torchrun.stderr:
            lines.append(line)
            if "kernels:" in line:
                children = Path(f"/proc/{torchrun.pid}/task/{torchrun.pid}/children").read_text()
                os.kill(int(children.split()[-1]), signal.SIGSTOP)
                stopped = time.monotonic()
            if line.startswith("error: process 1"):
                break
        assert time.monotonic() - stopped < 60
        assert "silent for 40 s" in lines[-1]
        torchrun.communicate()
    assert torchrun.returncode == 1
