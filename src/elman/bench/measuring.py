"""Measuring side by side: what every `elman bench` is made of.

Peers are measured in turns, so that a change in the machine's load meets all of them alike, and
medians are compared. Whole programs run as fresh processes, which pay for their own start; what
they took in time and memory is what the system says.
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
from typing import Any

from elman.base.errors import ElmanError


@dataclass(frozen=True)
class Row:
    """One comparison, as `elman bench` prints it."""

    name: str
    """What was measured."""
    ours: float
    """Elman's figure."""
    peer: float | None
    """The peer's, None where there is no peer."""
    ratio: float | None
    """How many times as good as the peer's our figure is: above 1, we are quicker or smaller."""
    unit: str
    """Of both figures."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What it was measured on, and whatever else tells about it."""
    error: float | None = None
    """How far our result is from an exact one, where the bench computes one."""
    peer_error: float | None = None
    """How far the peer's is."""


def less_is_better(name: str, ours: float, peer: float | None, unit: str, **settings: Any) -> Row:
    """A row of times or sizes."""
    return Row(name, ours, peer, None if peer is None else peer / ours, unit, settings)


def more_is_better(name: str, ours: float, peer: float | None, unit: str, **settings: Any) -> Row:
    """A row of speeds, or of scores; beside a peer that scores nothing there is no ratio."""
    return Row(name, ours, peer, ours / peer if peer else None, unit, settings)


@dataclass(frozen=True)
class Cost:
    """What a piece of work took; costs add up as those of one job after the other."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    """The most memory in use at a time; of a process that starts others, that of the largest."""

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.seconds + other.seconds,
            self.cpu_seconds + other.cpu_seconds,
            max(self.peak_bytes, other.peak_bytes),
        )


# A process inherits the peak of the one that starts it, so a program is started by a small one,
# which writes down what its child took. It measures the time as well, without its own start, and
# lets the disk finish first: a program shall not wait for what another one has written.
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
    """Run a program to its end: what it took, and what it said on stderr."""
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
        said = launched.stderr.decode(errors="replace")
        code, seconds, cpu_seconds, peak = (
            json.loads(report.read_text()) if report.exists() else (1, 0.0, 0.0, 0)
        )
    if code != 0:
        last = said.strip().splitlines()[-1:] or ["it said nothing"]
        raise ElmanError(
            f"{Path(command[0]).name} failed: {last[0]}", "run it by hand to see all that it says"
        )
    return Cost(seconds, cpu_seconds, peak * 1024), said


def timed(work: Callable[[], Any]) -> Callable[[], Cost]:
    """Work within this process as a task; the processor's time is that of all threads."""

    def task() -> Cost:
        seconds, cpu_seconds = time.perf_counter(), time.process_time()
        work()
        return Cost(time.perf_counter() - seconds, time.process_time() - cpu_seconds, 0)

    return task


def interleaved(tasks: Mapping[str, Callable[[], Cost]], repeat: int) -> dict[str, list[Cost]]:
    """Do every task in turn, `repeat` times over."""
    costs: dict[str, list[Cost]] = {name: [] for name in tasks}
    for _ in range(repeat):
        for name, task in tasks.items():
            costs[name].append(task())
    return costs


def median(costs: Sequence[Cost]) -> Cost:
    """The median of each figure by itself."""
    return Cost(
        statistics.median(cost.seconds for cost in costs),
        statistics.median(cost.cpu_seconds for cost in costs),
        int(statistics.median(cost.peak_bytes for cost in costs)),
    )
