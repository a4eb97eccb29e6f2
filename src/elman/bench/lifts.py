"""What pre-trained embeddings do for tasks: the same model with them and without, over seeds.

`elman bench lifts` trains every task as `elman train` would, in processes of their own, several at
a time if asked to; the two halves of a comparison differ in the embeddings alone. Where the runs
are given minutes, those with embeddings make fewer updates in them: the updates are part of what is
found. Finished runs are kept and not made again: a bench that was stopped goes on, and pictures can
be drawn later, and elsewhere.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from elman.base.errors import ElmanError, UsageError
from elman.base.files import read_json, read_json_lines, write_json
from elman.runs.run_folder import CONFIG_FILE
from elman.train.loop import METRICS_FILE

PLAN_FILE = "lifts.json"
ARMS = ("without", "with")


@dataclass(frozen=True)
class LiftTask:
    """A task to be lifted."""

    name: str
    kind: str
    """tagger or classifier."""
    train: str
    valid: str | None = None
    test: str | None = None
    """Where there is none, a fifth of the texts is held out, another fifth for each seed
    (classifiers alone): one fifth of a small corpus says little.
    """

    @classmethod
    def of(cls, kind: str, text: str) -> LiftTask:
        """From `name=train,valid,test` of the command line."""
        name, equals, paths = text.partition("=")
        files = [path for path in paths.split(",") if path]
        least = 3 if kind == "tagger" else 1
        if not equals or not name or not least <= len(files) <= 3 or len(files) == 2:
            form = "NAME=TRAIN,VALID,TEST" + ("" if kind == "tagger" else " or NAME=DATA")
            raise UsageError(f"'{text}' is not a task with its files", f"write it as {form}")
        if "/" in name or name.startswith("."):
            raise UsageError(f"'{name}' cannot name a folder", "use letters and digits")
        whole = [str(Path(path).expanduser().resolve()) for path in files]
        for path in whole:
            if not Path(path).exists():
                raise UsageError(f"{path} does not exist", "check the spelling of the path")
        return cls(name, kind, *whole)

    def command(self, seed: int) -> list[str]:
        """What `elman` is called with, as far as the data goes."""
        words = ["train", self.kind, self.train]
        words += ["--valid", self.valid] if self.valid else []
        if self.test:
            return [*words, "--test", self.test]
        return [*words, "--set", "data.test_fraction=0.2", "--set", f"data.split_seed={seed}"]


@dataclass(frozen=True)
class Plan:
    """All that the runs of a bench depend on."""

    embeddings: str
    tasks: tuple[LiftTask, ...]
    num_seeds: int
    length: tuple[str, ...] = ()
    """--minutes M, --epochs N or --steps N of every run; nothing: as long as the data suggests."""
    settings: tuple[str, ...] = ()
    """Assignments for all runs; those of model.embeddings for the runs that have some."""
    device: str = "auto"

    @classmethod
    def kept(cls, out: Path) -> Plan:
        """That of a folder of runs."""
        try:
            values = read_json(out / PLAN_FILE)
            values["tasks"] = tuple(LiftTask(**task) for task in values["tasks"])
            values |= {name: tuple(values[name]) for name in ("length", "settings")}
            return cls(**values)
        except (KeyError, TypeError, AttributeError) as error:
            raise ElmanError(
                f"{out / PLAN_FILE} is damaged: {error}", "restore it from a copy"
            ) from error

    def runs(self) -> Iterator[Run]:
        """The runs, those of one seed before those of the next."""
        for seed in range(1, self.num_seeds + 1):
            for task in self.tasks:
                for arm in ARMS:
                    yield Run(task, arm, seed)

    def command(self, run: Run, folder: Path) -> list[str]:
        """The command line of a run after `elman`."""
        given = ["--embeddings", self.embeddings] if run.arm == "with" else []
        for setting in self.settings:
            if run.arm == "with" or not setting.startswith("model.embeddings."):
                given += ["--set", setting]
        told = ["--seed", str(run.seed), "--device", self.device, "--out", str(folder), "--json"]
        return [*run.task.command(run.seed), *given, *self.length, *told]


@dataclass(frozen=True)
class Run:
    """One training of a bench."""

    task: LiftTask
    arm: str
    """without or with."""
    seed: int

    @property
    def folder(self) -> str:
        """Where it goes in the folder of the bench."""
        return f"{self.task.name}/{self.arm}-{self.seed}"


@dataclass(frozen=True)
class Lift:
    """What embeddings have done for one task; figures are those of the test, by seed."""

    task: str
    metric: str
    """What is measured, the first of the task's own figures."""
    without: list[float]
    with_embeddings: list[float]
    layer_weights: dict[str, list[list[float]]]
    """By place, the learnt shares of the layers in each run, bottom first."""
    scales: dict[str, list[float]]
    """By place, the learnt factor in each run."""
    updates: dict[str, list[int]]
    """By arm, how many updates each run made."""
    seconds: float
    """Of all its runs together."""

    @property
    def lifts(self) -> list[float]:
        """What each seed has gained."""
        return [b - a for a, b in zip(self.without, self.with_embeddings, strict=True)]

    def to_dict(self) -> dict[str, Any]:
        """As JSON, means and deviations included; `ours` is with embeddings, `peer` without."""
        ours, peer = mean(self.with_embeddings), mean(self.without)
        return {
            "name": self.task,
            "ours": ours,
            "peer": peer,
            "ratio": ours / peer if peer else None,
            "unit": self.metric,
            "lift": mean(self.lifts),
            "deviation": spread(self.with_embeddings),
            "peer_deviation": spread(self.without),
            "lift_deviation": spread(self.lifts),
            "layer_weights": self.layer_weights,
            "scales": self.scales,
            "settings": {
                "with": self.with_embeddings,
                "without": self.without,
                "updates": self.updates,
                "seconds": self.seconds,
            },
        }


def spread(values: Sequence[float]) -> float:
    """The standard deviation over seeds; 0 of a single one."""
    return stdev(values) if len(values) > 1 else 0.0


def measure(
    plan: Plan, out: Path, *, jobs: int = 1, note: Callable[[str], None] = lambda text: None
) -> list[Lift]:
    """Make the runs that are not there yet, `jobs` at a time, and compare."""
    kept = json.loads(json.dumps(asdict(plan)))
    if (out / PLAN_FILE).is_file() and read_json(out / PLAN_FILE) != kept:
        raise UsageError(
            f"{out} holds the runs of another comparison",
            "choose another --out, or ask for the same as then",
        )
    write_json(out / PLAN_FILE, kept)
    runs = list(plan.runs())
    threads = max(1, (os.cpu_count() or 1) // jobs)

    def make(run: Run) -> Mapping[str, Any]:
        folder = out / run.folder
        found = _summary(folder)
        if found is None:
            found = _train(plan, run, folder, threads)
            metric = _metric(found)
            note(
                f"{run.task.name} {run.arm}, seed {run.seed}: {metric.replace('_', ' ')} "
                f"{found[f'test_{metric}']:.4f}, {found['seconds']:.0f} s"
            )
        return found

    with ThreadPoolExecutor(jobs) as pool:
        try:
            summaries = dict(zip(runs, pool.map(make, runs), strict=True))
        except BaseException:  # what has not begun does not begin
            pool.shutdown(cancel_futures=True)
            raise
    return [
        _lift(task, {r: s for r, s in summaries.items() if r.task == task}) for task in plan.tasks
    ]


def _summary(folder: Path) -> Mapping[str, Any] | None:
    """The summary of a finished run."""
    if not (folder / METRICS_FILE).is_file():
        return None
    lines = read_json_lines(folder / METRICS_FILE)
    found: Mapping[str, Any] | None = lines[-1].get("summary") if lines else None
    return found


def _train(plan: Plan, run: Run, folder: Path, threads: int) -> Mapping[str, Any]:
    """One run in a process of its own; one that was begun goes on."""
    command = plan.command(run, folder)
    if (folder / CONFIG_FILE).is_file():
        command = ["train", run.task.kind, "--out", str(folder), "--resume", "--json"]
        command += ["--device", plan.device]
    # As many threads as there are processors for: torch would take all of them for each run.
    environment = {"OMP_NUM_THREADS": str(threads), **os.environ}
    done = subprocess.run(
        [sys.executable, "-m", "elman.cli", *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        last = (said or done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        what = f"{run.task.name} {run.arm} embeddings, seed {run.seed}"
        raise ElmanError(
            f"{what}: {last.removeprefix('error: ')}",
            f"by hand: elman {' '.join(command)}",
        )
    summary: Mapping[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return summary


def _metric(summary: Mapping[str, Any]) -> str:
    """The figure that decides: the first of the test's."""
    return next(name for name in summary if name.startswith("test_")).removeprefix("test_")


def _lift(task: LiftTask, summaries: Mapping[Run, Mapping[str, Any]]) -> Lift:
    arms = {arm: [found for run, found in summaries.items() if run.arm == arm] for arm in ARMS}
    metric = _metric(arms["with"][0])
    mixes = [found.get("layer_weights", {}) for found in arms["with"]]
    return Lift(
        task=task.name,
        metric=metric,
        without=[found[f"test_{metric}"] for found in arms["without"]],
        with_embeddings=[found[f"test_{metric}"] for found in arms["with"]],
        layer_weights={place: [mix[place]["weights"] for mix in mixes] for place in mixes[0]},
        scales={place: [mix[place]["scale"] for mix in mixes] for place in mixes[0]},
        updates={arm: [found["steps"] for found in runs] for arm, runs in arms.items()},
        seconds=sum(found["seconds"] for found in summaries.values()),
    )
