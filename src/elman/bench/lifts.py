"""`elman bench lifts`: tasks with and without pre-trained embeddings, over seeds.

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
from dataclasses import asdict, dataclass
from itertools import product
from json import dumps, loads
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated, Any

from typer import Option

from elman.base.errors import ElmanError, UsageError
from elman.base.files import read_json, read_json_lines, write_json
from elman.bench.shared import note, work_folder
from elman.terminal.console import SHARES, result, result_json, spoken, table
from elman.terminal.options import Device, Epochs, Json, Minutes, Settings, Steps

PLAN_FILE = "lifts.json"
ARMS = ("without", "with")


def lifts(
    embeddings: Annotated[
        str | None,
        Option(
            metavar="MODEL|FILE",
            help="A run folder (elmo, lm), published ELMo weights, or a file of word vectors. "
            "Without it: show or continue the comparison in --out.",
        ),
    ] = None,
    tagger: Annotated[
        list[str] | None,
        Option(
            metavar="NAME=TRAIN,VALID,TEST", help="A tagging task and its files; may be repeated."
        ),
    ] = None,
    classifier: Annotated[
        list[str] | None,
        Option(
            metavar="NAME=TRAIN,VALID,TEST|NAME=DATA",
            help="A classification task; each seed holds another fifth of DATA out. May be "
            "repeated.",
        ),
    ] = None,
    seeds: Annotated[int, Option(metavar="N", min=1, help="Train each arm with seeds 1 to N.")] = 3,
    jobs: Annotated[int, Option(metavar="N", min=1, help="Runs at a time, a process each.")] = 1,
    minutes: Minutes = None,
    epochs: Epochs = None,
    steps: Steps = None,
    settings: Settings = None,
    out: Annotated[
        Path | None,
        Option(
            metavar="DIR",
            help="Keep the runs here; finished ones are reused. [default: a temporary folder]",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        Option(metavar="FILE", help="Draw the learnt layer weights (.png, .svg, .pdf)."),
    ] = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Train tasks with and without pre-trained embeddings: mean and spread over seeds.

    The two arms differ only in the embeddings; figures are those of the test. Settings of
    model.embeddings apply to the arm that has them. In the same --minutes a model with embeddings
    makes fewer updates; --epochs and --steps compare models that have read as much text.
    """
    if embeddings is None:
        if out is None or not (out / PLAN_FILE).is_file():
            raise UsageError("it is unknown which embeddings to use", "name them with --embeddings")
        if tagger or classifier or minutes or epochs or steps or settings:
            raise UsageError(
                "a kept comparison has its own settings", "give --embeddings to start another"
            )
        plan = LiftPlan.read(out)
    else:
        lengths = {"--minutes": minutes, "--epochs": epochs, "--steps": steps}
        given = [(name, str(value)) for name, value in lengths.items() if value is not None]
        if len(given) > 1:
            raise UsageError(
                "the length of the runs is given twice", "give one of --minutes, --epochs, --steps"
            )
        plan = LiftPlan(
            str(Path(embeddings).expanduser().resolve()),
            _tasks(tagger or (), classifier or ()),
            seeds,
            tuple(word for pair in given for word in pair),
            tuple(settings or ()),
            device,
        )
    with work_folder(out) as folder:
        found = measure(plan, folder, jobs=jobs)
    if plot is not None:
        _draw(found, plot)
    if json:
        for lift in found:
            result_json(lift.to_dict())
        return
    result(_lift_table(found))
    if any(lift.layer_weights for lift in found):
        result("\n" + _weight_table(found))


def _tasks(taggers: Sequence[str], classifiers: Sequence[str]) -> tuple[LiftTask, ...]:
    tasks = [LiftTask.of("tagger", text) for text in taggers]
    tasks += [LiftTask.of("classifier", text) for text in classifiers]
    if not tasks:
        raise UsageError(
            "there is no task to train", "add --tagger upos=train.conllu,dev.conllu,test.conllu"
        )
    if len({task.name for task in tasks}) < len(tasks):
        raise UsageError("two tasks have the same name", "give each its own name")
    return tuple(tasks)


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
        try:
            values = read_json(out / PLAN_FILE)
            values["tasks"] = tuple(LiftTask(**task) for task in values["tasks"])
            values |= {name: tuple(values[name]) for name in ("length", "settings")}
            return cls(**values)
        except (KeyError, TypeError, AttributeError) as error:
            raise ElmanError(
                f"{out / PLAN_FILE} is damaged: {error}", "restore it from a copy"
            ) from error

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


@dataclass(frozen=True)
class LiftRun:
    """One training run."""

    task: LiftTask
    arm: str
    """`without` or `with`."""
    seed: int

    @property
    def folder(self) -> str:
        return f"{self.task.name}/{self.arm}-{self.seed}"


@dataclass(frozen=True)
class Lift:
    """The comparison of one task; values are test metrics, by seed."""

    task: str
    metric: str
    """The first metric of the task."""
    without: list[float]
    with_embeddings: list[float]
    layer_weights: dict[str, list[list[float]]]
    """By place, the learnt layer weights of each run, bottom first."""
    scales: dict[str, list[float]]
    """By place, the learnt scale of each run."""
    updates: dict[str, list[int]]
    """By arm, the updates of each run."""
    seconds: float
    """Of all runs together."""

    @property
    def lifts(self) -> list[float]:
        """The gain of each seed."""
        return [b - a for a, b in zip(self.without, self.with_embeddings, strict=True)]

    def to_dict(self) -> dict[str, Any]:
        """The JSON row; `ours` is with embeddings, `peer` without."""
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
    """The standard deviation over seeds; 0 for a single one."""
    return stdev(values) if len(values) > 1 else 0.0


def measure(plan: LiftPlan, out: Path, *, jobs: int = 1) -> list[Lift]:
    """Train the runs that are missing, `jobs` at a time, and compare."""
    kept = loads(dumps(asdict(plan)))
    if (out / PLAN_FILE).is_file() and read_json(out / PLAN_FILE) != kept:
        raise UsageError(
            f"{out} holds the runs of another comparison",
            "choose another --out, or repeat the same command",
        )
    write_json(out / PLAN_FILE, kept)
    runs = plan.runs()
    threads = max(1, (os.cpu_count() or 1) // jobs)

    from concurrent.futures import ThreadPoolExecutor  # slow to import

    def finish(run: LiftRun) -> Mapping[str, Any]:
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
            summaries = dict(zip(runs, pool.map(finish, runs), strict=True))
        except BaseException:  # do not start the remaining runs
            pool.shutdown(cancel_futures=True)
            raise
    return [
        _lift(task, {r: s for r, s in summaries.items() if r.task == task}) for task in plan.tasks
    ]


def _summary(folder: Path) -> Mapping[str, Any] | None:
    """The summary of a finished run, else None."""
    from elman.train.files import METRICS_FILE

    if not (folder / METRICS_FILE).is_file():
        return None
    lines = read_json_lines(folder / METRICS_FILE)
    found: Mapping[str, Any] | None = lines[-1].get("summary") if lines else None
    return found


def _train(plan: LiftPlan, run: LiftRun, folder: Path, threads: int) -> Mapping[str, Any]:
    """Train or resume one run in its own process."""
    from elman.runs.run_folder import CONFIG_FILE

    command = plan.command(run, folder)
    if (folder / CONFIG_FILE).is_file():
        command = ["train", run.task.kind, "--out", str(folder), "--resume", "--json"]
        command += ["--device", plan.device]
    # torch would use all cores for each run.
    environment = {"OMP_NUM_THREADS": str(threads), **os.environ}
    done = subprocess.run(
        [sys.executable, "-m", "elman", *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        last = (errors or done.stderr.strip().splitlines() or ["no output on stderr"])[-1]
        what = f"{run.task.name} {run.arm} embeddings, seed {run.seed}"
        raise ElmanError(
            f"{what}: {last.removeprefix('error: ')}", f"try by hand: elman {' '.join(command)}"
        )
    summary: Mapping[str, Any] = loads(done.stdout.splitlines()[-1])
    return summary


def _metric(summary: Mapping[str, Any]) -> str:
    """The first test metric."""
    return next(name for name in summary if name.startswith("test_")).removeprefix("test_")


def _lift(task: LiftTask, summaries: Mapping[LiftRun, Mapping[str, Any]]) -> Lift:
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


def _lift_table(found: list[Lift]) -> str:
    """Mean and deviation over seeds of each arm, and the updates of a run (per arm if unequal)."""

    def text(lift: Lift, values: list[float], sign: str = "") -> str:
        factor = 100 if lift.metric in SHARES else 1
        deviation = f" ± {factor * spread(values):.2f}" if len(values) > 1 else ""
        return f"{factor * mean(values):{sign}.2f}{deviation}"

    rows = [
        (
            lift.task,
            spoken(lift.metric) + (" %" if lift.metric in SHARES else ""),
            text(lift, lift.without),
            text(lift, lift.with_embeddings),
            text(lift, lift.lifts, "+"),
            " / ".join(dict.fromkeys(f"{mean(lift.updates[arm]):,.0f}" for arm in ARMS)),
        )
        for lift in found
    ]
    return table(rows, ("task", "test", "without", "with", "lift", "updates"))


def _weight_table(found: list[Lift]) -> str:
    """The learnt layer weights of each task, means over seeds."""
    rows = [
        (
            lift.task,
            place,
            " ".join(f"{mean(shares):.3f}" for shares in zip(*runs, strict=True)),
            f"{mean(lift.scales[place]):.3f}",
        )
        for lift in found
        for place, runs in lift.layer_weights.items()
    ]
    return table(rows, ("task", "enters at", "weights of the layers, bottom first", "scale"))


def _draw(found: list[Lift], path: Path) -> None:
    from elman.evaluate.pictures import draw_layer_weights

    weights = {
        lift.task + ("" if len(lift.layer_weights) == 1 else f", {place}"): runs
        for lift in found
        for place, runs in lift.layer_weights.items()
    }
    if not weights:
        raise UsageError("there are no layer weights to draw", "set model.embeddings.layers=mix")
    draw_layer_weights(weights, path)
