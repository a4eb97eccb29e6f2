"""Run an experiment: its seeds in processes of their own, rows as they come, then the result."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elman.base.errors import ElmanError
from elman.base.threads import default_threads
from elman.lab.claims import experiment_named
from elman.lab.experiment import SEEDS, SIZE, Experiment, Row, Size, Trial
from elman.lab.results import Result, machine_words
from elman.lab.verdicts import answers, joint


@dataclass(frozen=True, kw_only=True)
class Run:
    """How an experiment is run."""

    experiment: Experiment
    knob: Any = None
    """None: the default."""
    seeds: int = SEEDS
    first_seed: int = 1
    size: Size = SIZE
    device: str = "cpu"
    minutes: float | None = None
    """Start no seed after this time; None: run all."""
    jobs: int | None = None
    """Seeds at a time; None: one for each core, one on a GPU."""

    @property
    def knob_value(self) -> Any:
        return self.experiment.knob.default if self.knob is None else self.knob


def run(
    run: Run,
    seen: Callable[[Row], None] | None = None,
    ended: Callable[[int], None] | None = None,
) -> Result:
    """Run an experiment; call `seen` with each row as it is measured, `ended` with each seed."""
    began = time.monotonic()
    rows: list[Row] = []
    for found in _found(run):
        if isinstance(found, dict):
            rows.append(found)
            if seen is not None:
                seen(found)
        elif ended is not None:
            ended(found)
    # The order of rows must not depend on which process was quicker.
    rows.sort(key=lambda row: int(row["seed"]))
    return concluded(run, rows, time.monotonic() - began)


def concluded(run: Run, rows: list[Row], seconds: float) -> Result:
    """What the rows say."""
    findings = answers(run.experiment, rows)
    return Result(
        id=run.experiment.id,
        knob=run.knob_value,
        size=run.size,
        seeds=sorted(run.experiment.rows_by_seed(rows)),
        findings=findings,
        verdict=joint(findings),
        seconds=round(seconds, 1),
        machine=machine_words(run.device),
        rows=rows,
    )


def _found(run: Run) -> Iterator[Row | int]:
    """Yield rows, and seeds that are complete."""
    seeds = list(range(run.first_seed, run.first_seed + run.seeds))
    is_gpu = run.device != "cpu"
    jobs = run.jobs or (1 if run.experiment.alone or is_gpu else default_threads())
    jobs = min(jobs, len(seeds))
    threads = max(1, default_threads() // jobs)
    # Processes that were forked would share locks of torch's threads.
    context = multiprocessing.get_context("spawn")
    waiting, found = context.Queue(), context.Queue()
    deadline = None if run.minutes is None else time.monotonic() + 60 * run.minutes
    with ExitStack() as stack:
        # One folder of this process: a worker that is killed removes nothing.
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="elman-lab-"))
        about = (run.experiment.id, run.knob_value, run.size, run.device, threads, folder)
        workers = [
            context.Process(target=_work, args=(*about, waiting, found), daemon=True)
            for _ in range(jobs)
        ]
        stack.callback(_end, workers)
        for worker in workers:
            worker.start()
        begun = 0
        for seed in seeds[:jobs]:
            waiting.put(seed)
            begun += 1
        ended = 0
        while ended < begun:
            kind, value = _next(found, workers)
            if kind == "row":
                yield value
            elif kind == "failed":
                raise value
            else:
                ended += 1
                yield value
                if begun < len(seeds) and (deadline is None or time.monotonic() < deadline):
                    waiting.put(seeds[begun])
                    begun += 1


def _end(workers: list[Any]) -> None:
    """Kill all workers: training takes SIGTERM as a wish to save, then the experiment goes on."""
    started = [worker for worker in workers if worker.pid is not None]
    for worker in started:
        worker.kill()
    for worker in started:
        worker.join()


def _next(found: Any, workers: list[Any]) -> tuple[str, Any]:
    """Wait for a message; raise an error if a process died without one."""
    while True:
        try:
            kind, value = found.get(timeout=1.0)
            return str(kind), value
        except queue.Empty:
            dead = [worker.exitcode for worker in workers if worker.exitcode is not None]
            if dead:
                raise ElmanError(
                    f"a process of the experiment died (exit code {dead[0]})",
                    "is there enough memory? try --jobs 1",
                ) from None


def _work(
    id: str,
    knob: Any,
    size: Size,
    device: str,
    threads: int,
    place: str,
    waiting: Any,
    found: Any,
) -> None:
    """Run seeds until the process is ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this one
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch

    torch.set_num_threads(threads)
    experiment = experiment_named(id)
    while True:
        seed = waiting.get()
        try:
            with tempfile.TemporaryDirectory(dir=place) as folder:
                trial = Trial(seed=seed, knob=knob, size=size, device=device, folder=Path(folder))
                torch.manual_seed(seed)
                for row in experiment.measure(trial):
                    found.put(("row", {"seed": seed, **row}))
        except ElmanError as error:
            found.put(("failed", error))
        except Exception:
            found.put(("failed", RuntimeError(f"{id}, seed {seed}:\n{traceback.format_exc()}")))
        else:
            found.put(("done", seed))


def _end_with_parent() -> None:
    """Do not outlive a parent that was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
