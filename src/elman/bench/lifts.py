"""Tasks with and without pre-trained embeddings, over seeds.

Each task is trained as `elman train` would, in a process of its own; the two arms of a comparison
differ only in the embeddings. In a given number of minutes the arm with embeddings makes fewer
updates, so updates are reported. Finished runs are kept: a bench that was stopped continues, and
plots can be drawn later.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import product
from json import dumps, loads
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from elman.base.documents import intact, read_json, read_json_lines, write_json
from elman.base.errors import ElmanError, UsageError
from elman.base.threads import usable_cores
from elman.bench.measuring import last_line
from elman.bench.rows import note
from elman.evaluate.pictures import draw_layer_weights
from elman.runs.run_folder import CONFIG_FILE
from elman.terminal.console import SHARES, spoken, table
from elman.train.files import METRICS_FILE

PLAN_FILE = "lifts.json"
ARMS = ("without", "with")
Summary = Mapping[str, Any]
"""The summary of a finished run."""


@dataclass(frozen=True)
class LiftTask:
    """A task and its data files."""

    name: str
    kind: str
    """`tagger` or `classifier`."""
    train: str
    valid: str | None = None
    test: str | None = None
    """None (classifiers only): each seed holds out another fifth, as one fifth of a small corpus
    says little.
    """

    @classmethod
    def of(cls, kind: str, text: str) -> LiftTask:
        """Parse `name=train,valid,test`."""
        name, equals, paths = text.partition("=")
        files = [path for path in paths.split(",") if path]
        least = 3 if kind == "tagger" else 1
        if not equals or not name or not least <= len(files) <= 3 or len(files) == 2:
            form = "NAME=TRAIN,VALID,TEST" + ("" if kind == "tagger" else " or NAME=DATA")
            raise UsageError(f"'{text}' is not a task and its files", f"write it as {form}")
        if "/" in name or name.startswith("."):
            raise UsageError(f"'{name}' cannot name a folder", "use letters and digits")
        whole = [str(Path(path).expanduser().resolve()) for path in files]
        for path in whole:
            if not Path(path).exists():
                raise UsageError(f"{path} does not exist", "check the spelling of the path")
        return cls(name, kind, *whole)

    def command(self, seed: int) -> list[str]:
        """The part of the command line that names the data."""
        words = ["train", self.kind, self.train]
        words += ["--valid", self.valid] if self.valid else []
        if self.test:
            return [*words, "--test", self.test]
        return [*words, "--set", "data.test_fraction=0.2", "--set", f"data.split_seed={seed}"]


@dataclass(frozen=True)
class LiftPlan:
    """Everything that the runs of a bench depend on."""

    embeddings: str
    tasks: tuple[LiftTask, ...]
    num_seeds: int
    length: tuple[str, ...] = ()
    """--minutes M, --epochs N or --steps N of every run; empty: the automatic length."""
    settings: tuple[str, ...] = ()
    """For all runs; those of model.embeddings only for the arm that has them."""
    device: str = "auto"

    @classmethod
    def read(cls, out: Path) -> LiftPlan:
        with intact(out / PLAN_FILE):
            values = read_json(out / PLAN_FILE)
            values["tasks"] = tuple(LiftTask(**task) for task in values["tasks"])
            values |= {name: tuple(values[name]) for name in ("length", "settings")}
            return cls(**values)

    def runs(self) -> list[LiftRun]:
        """All runs, ordered by seed."""
        seeds = range(1, self.num_seeds + 1)
        return [LiftRun(task, arm, seed) for seed, task, arm in product(seeds, self.tasks, ARMS)]

    def command(self, run: LiftRun, folder: Path) -> list[str]:
        """The arguments of `elman` for a run."""
        given = ["--embeddings", self.embeddings] if run.arm == "with" else []
        for setting in self.settings:
            if run.arm == "with" or not setting.startswith("model.embeddings."):
                given += ["--set", setting]
        rest = ["--seed", str(run.seed), "--device", self.device, "--out", str(folder), "--json"]
        return [*run.task.command(run.seed), *given, *self.length, *rest]


class LiftRun(NamedTuple):
    """One training run."""

    task: LiftTask
    arm: str
    """`without` or `with`."""
    seed: int

    @property
    def folder(self) -> str:
        return f"{self.task.name}/{self.arm}-{self.seed}"


def make_plan(
    embeddings: str,
    taggers: Sequence[str],
    classifiers: Sequence[str],
    num_seeds: int,
    lengths: Mapping[str, float | None],
    settings: Sequence[str],
    device: str,
) -> LiftPlan:
    """A plan from what the command line has."""
    given = [(name, str(value)) for name, value in lengths.items() if value is not None]
    if len(given) > 1:
        raise UsageError(
            "the length of the runs is given twice", "give one of --minutes, --epochs, --steps"
        )
    tasks = [LiftTask.of("tagger", text) for text in taggers]
    tasks += [LiftTask.of("classifier", text) for text in classifiers]
    if not tasks:
        raise UsageError(
            "there is no task to train", "add --tagger upos=train.conllu,dev.conllu,test.conllu"
        )
    if len({task.name for task in tasks}) < len(tasks):
        raise UsageError("two tasks have the same name", "give each its own name")
    length = tuple(word for pair in given for word in pair)
    path = str(Path(embeddings).expanduser().resolve())
    return LiftPlan(path, tuple(tasks), num_seeds, length, tuple(settings), device)


def measure(plan: LiftPlan, out: Path, *, jobs: int = 1) -> list[dict[str, Any]]:
    """Train the runs that are missing, `jobs` at a time; return a JSON row for each task."""
    kept = loads(dumps(asdict(plan)))
    if (out / PLAN_FILE).is_file() and read_json(out / PLAN_FILE) != kept:
        raise UsageError(
            f"{out} holds the runs of another comparison",
            "choose another --out, or repeat the same command",
        )
    write_json(out / PLAN_FILE, kept)
    runs = plan.runs()
    threads = max(1, usable_cores() // jobs)

    def finish(run: LiftRun) -> Summary:
        folder = out / run.folder
        found = _summary(folder)
        if found is None:
            found = _train(plan, run, folder, threads)
            metric = _metric(found)
            value = f"{spoken(metric)} {found[f'test_{metric}']:.4f}"
            note(f"{run.task.name} {run.arm}, seed {run.seed}: {value}, {found['seconds']:.0f} s")
        return found

    with ThreadPoolExecutor(jobs) as pool:
        try:
            summaries = list(pool.map(finish, runs))
        except BaseException:  # do not start the remaining runs
            pool.shutdown(cancel_futures=True)
            raise
    found = list(zip(runs, summaries, strict=True))
    return [
        compare(
            task.name, *([s for run, s in found if (run.task, run.arm) == (task, a)] for a in ARMS)
        )
        for task in plan.tasks
    ]


def _summary(folder: Path) -> Summary | None:
    """The summary of a finished run, else None."""
    lines = read_json_lines(folder / METRICS_FILE, missing_ok=True)
    return lines[-1].get("summary") if lines else None


def _train(plan: LiftPlan, run: LiftRun, folder: Path, threads: int) -> Summary:
    """Train or resume one run in its own process."""
    command = plan.command(run, folder)
    if (folder / CONFIG_FILE).is_file():
        command = ["train", run.task.kind, "--out", str(folder), "--resume", "--json"]
        command += ["--device", plan.device]
    done = subprocess.run(
        [sys.executable, "-m", "elman", *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env={"OMP_NUM_THREADS": str(threads), **os.environ},  # torch would use all cores
    )
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        last = last_line("\n".join(errors) or done.stderr).removeprefix("error: ")
        what = f"{run.task.name} {run.arm} embeddings, seed {run.seed}"
        raise ElmanError(f"{what}: {last}", f"try by hand: elman {' '.join(command)}")
    summary: Summary = loads(done.stdout.splitlines()[-1])
    return summary


def _metric(summary: Summary) -> str:
    """The first test metric."""
    return next(name for name in summary if name.startswith("test_")).removeprefix("test_")


def compare(
    task: str, without: Sequence[Summary], with_embeddings: Sequence[Summary]
) -> dict[str, Any]:
    """The JSON row of a task: `ours` is with embeddings, `peer` without; runs are paired by seed.

    Layer weights and scales are those of each run, by the place where the embeddings enter.
    """
    metric = _metric(with_embeddings[0])
    peers, ours = ([run[f"test_{metric}"] for run in runs] for runs in (without, with_embeddings))
    lifts = [b - a for a, b in zip(peers, ours, strict=True)]
    mixes = [run.get("layer_weights", {}) for run in with_embeddings]
    return {
        "name": task,
        "ours": mean(ours),
        "peer": mean(peers),
        "ratio": mean(ours) / mean(peers) if mean(peers) else None,
        "unit": metric,
        "lift": mean(lifts),
        "deviation": spread(ours),
        "peer_deviation": spread(peers),
        "lift_deviation": spread(lifts),
        "layer_weights": {place: [mix[place]["weights"] for mix in mixes] for place in mixes[0]},
        "scales": {place: [mix[place]["scale"] for mix in mixes] for place in mixes[0]},
        "settings": {
            "with": ours,
            "without": peers,
            "updates": {
                "without": [run["steps"] for run in without],
                "with": [run["steps"] for run in with_embeddings],
            },
            "seconds": sum(run["seconds"] for run in (*without, *with_embeddings)),
        },
    }


def spread(values: Sequence[float]) -> float:
    """The standard deviation over seeds; 0 for a single one."""
    return stdev(values) if len(values) > 1 else 0.0


def lift_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Mean and deviation over seeds of each arm, and the updates of a run (per arm if unequal)."""

    def text(row: Mapping[str, Any], value: str, deviation: str, sign: str = "") -> str:
        factor = 100 if row["unit"] in SHARES else 1
        several = len(row["settings"]["with"]) > 1
        rest = f" ± {factor * row[deviation]:.2f}" if several else ""
        return f"{factor * row[value]:{sign}.2f}{rest}"

    lines = [
        (
            row["name"],
            spoken(row["unit"]) + (" %" if row["unit"] in SHARES else ""),
            text(row, "peer", "peer_deviation"),
            text(row, "ours", "deviation"),
            text(row, "lift", "lift_deviation", "+"),
            " / ".join(dict.fromkeys(f"{mean(row['settings']['updates'][a]):,.0f}" for a in ARMS)),
        )
        for row in rows
    ]
    return table(lines, ("task", "test", "without", "with", "lift", "updates"))


def weight_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The learnt layer weights of each task, means over seeds."""
    lines = [
        (
            row["name"],
            place,
            " ".join(f"{mean(shares):.3f}" for shares in zip(*runs, strict=True)),
            f"{mean(row['scales'][place]):.3f}",
        )
        for row in rows
        for place, runs in row["layer_weights"].items()
    ]
    return table(lines, ("task", "enters at", "weights of the layers, bottom first", "scale"))


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    weights = {
        row["name"] + ("" if len(row["layer_weights"]) == 1 else f", {place}"): runs
        for row in rows
        for place, runs in row["layer_weights"].items()
    }
    if not weights:
        raise UsageError("there are no layer weights to draw", "set model.embeddings.layers=mix")
    draw_layer_weights(weights, path)
