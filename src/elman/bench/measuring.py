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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elman.base.errors import ElmanError

Work = Callable[[], Any]


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
) -> Cost:
    """Run a program to its end; if it fails, raise an error with its last line on stderr."""
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
        code, seconds, cpu_seconds, peak = (
            json.loads(report.read_text()) if report.exists() else (1, 0.0, 0.0, 0)
        )
    if code != 0:
        last = last_line(launched.stderr.decode(errors="replace"))
        name = Path(command[0]).name
        raise ElmanError(f"{name} failed: {last}", "run it by hand to see its output")
    return Cost(seconds, cpu_seconds, peak * 1024)


def last_line(stderr: str) -> str:
    return (stderr.strip().splitlines() or ["no output on stderr"])[-1]


def by_the_clock(work: Work) -> Cost:
    """Time `work` in this process, with the CPU time of all threads.

    Work that runs a program returns its cost, which is taken instead.
    """
    seconds, cpu_seconds = time.perf_counter(), time.process_time()
    result = work()
    if isinstance(result, Cost):
        return result
    return Cost(time.perf_counter() - seconds, time.process_time() - cpu_seconds, 0)


def in_turns(
    works: Mapping[str, Work], repeat: int, measure: Callable[[Work], Cost] = by_the_clock
) -> dict[str, Cost]:
    """Run all works in turn, `repeat` times; the median cost of each."""
    costs: dict[str, list[Cost]] = {name: [] for name in works}
    for _ in range(repeat):
        for name, work in works.items():
            costs[name].append(measure(work))
    return {name: median(found) for name, found in costs.items()}


def median(costs: Sequence[Cost]) -> Cost:
    """The median of each field separately."""
    return Cost(
        statistics.median(cost.seconds for cost in costs),
        statistics.median(cost.cpu_seconds for cost in costs),
        int(statistics.median(cost.peak_bytes for cost in costs)),
    )


@contextmanager
def work_folder(folder: Path | None = None) -> Iterator[Path]:
    """`folder`, created if needed, or a temporary one that is removed afterwards."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="elman-bench-") as temporary:
        yield Path(temporary)
