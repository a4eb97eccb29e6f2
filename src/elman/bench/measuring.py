"""Timing for every bench: peers take turns, medians are compared.

Turns spread a change of the machine's load over all peers. Whole programs run as fresh processes,
start-up included; the operating system reports their time and memory.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elman.base.errors import ElmanError

if TYPE_CHECKING:
    from elman.runs.trained_run import TrainedRun
    from elman.train.report import Report

Work = Callable[[], Any]


@dataclass(frozen=True)
class Row:
    """One comparison, as `elman bench` prints it."""

    name: str
    ours: float
    peer: float | None
    ratio: float | None
    """Above 1, Elman is faster, smaller or better than the peer."""
    unit: str
    """Of `ours` and `peer`."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Sizes, thread counts and secondary results."""
    error: float | None = None
    """Relative distance of our result from the float64 one, if the bench computes it."""
    peer_error: float | None = None


def less_is_better(name: str, ours: float, peer: float | None, unit: str, **settings: Any) -> Row:
    """A row of times or sizes."""
    return Row(name, ours, peer, None if peer is None else peer / ours, unit, settings)


def more_is_better(name: str, ours: float, peer: float | None, unit: str, **settings: Any) -> Row:
    """A row of speeds or scores; no ratio to a peer of 0."""
    return Row(name, ours, peer, ours / peer if peer else None, unit, settings)


@dataclass(frozen=True)
class Cost:
    """Resources used by a piece of work; `a + b` is the cost of running b after a."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    """Peak memory; for a process with children, that of the largest."""

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.seconds + other.seconds,
            self.cpu_seconds + other.cpu_seconds,
            max(self.peak_bytes, other.peak_bytes),
        )


# A process inherits the peak memory of its parent, so a small process starts the program and
# reports its usage. It also times the program, without its own start-up, and syncs the disk first
# so that a program does not wait for the writes of the previous one.
_LAUNCHER = """
import json, os, subprocess, sys, time
report, source, sink, *command = sys.argv[1:]
os.sync()
with open(source, "rb") as stdin, open(sink, "wb") as stdout:
    started = time.perf_counter()
    child = subprocess.Popen(command, stdin=stdin, stdout=stdout)
    _, status, used = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - started
with open(report, "w") as file:
    cpu_seconds = used.ru_utime + used.ru_stime
    json.dump([os.waitstatus_to_exitcode(status), seconds, cpu_seconds, used.ru_maxrss], file)
os._exit(0)
"""


def run_program(
    command: Sequence[str | Path], *, stdin: Path | None = None, stdout: Path | None = None
) -> tuple[Cost, str]:
    """Run a program to its end; return its cost and its stderr."""
    with tempfile.TemporaryDirectory(prefix="elman-bench-") as folder:
        report = Path(folder) / "report.json"
        places = (report, stdin or os.devnull, stdout or os.devnull)
        launched = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _LAUNCHER, *map(str, (*places, *command))],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
        stderr = launched.stderr.decode(errors="replace")
        code, seconds, cpu_seconds, peak = (
            json.loads(report.read_text()) if report.exists() else (1, 0.0, 0.0, 0)
        )
    if code != 0:
        last = stderr.strip().splitlines()[-1:] or ["no output on stderr"]
        raise ElmanError(
            f"{Path(command[0]).name} failed: {last[0]}", "run it by hand to see its output"
        )
    return Cost(seconds, cpu_seconds, peak * 1024), stderr


def timed(work: Work) -> Callable[[], Cost]:
    """Time `work` in this process; CPU time is that of all threads."""

    def measure() -> Cost:
        seconds, cpu_seconds = time.perf_counter(), time.process_time()
        work()
        return Cost(time.perf_counter() - seconds, time.process_time() - cpu_seconds, 0)

    return measure


def interleaved(works: Mapping[str, Callable[[], Cost]], repeat: int) -> dict[str, Cost]:
    """Run all works in turn, `repeat` times; the median cost of each."""
    costs: dict[str, list[Cost]] = {name: [] for name in works}
    for _ in range(repeat):
        for name, work in works.items():
            costs[name].append(work())
    return {name: median(found) for name, found in costs.items()}


def median(costs: Sequence[Cost]) -> Cost:
    """The median of each field separately."""
    return Cost(
        statistics.median(cost.seconds for cost in costs),
        statistics.median(cost.cpu_seconds for cost in costs),
        int(statistics.median(cost.peak_bytes for cost in costs)),
    )


def train_run(
    config: TrainedRun, folder: Path, *, device: str = "auto", begin_with: Path | None = None
) -> tuple[Mapping[str, float], Report]:
    """Train a whole run; return its summary and its last validation."""
    from elman.recipes.run import train

    summary: Mapping[str, float] | None = None
    last: Report | None = None
    for report in train(config, folder, device=device, begin_with=begin_with):
        summary = report.summary or summary
        last = report if report.kind == "valid" else last
    if summary is None or last is None:
        raise ElmanError("the training run was stopped", "start the bench again")
    return summary, last
