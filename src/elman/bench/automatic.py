"""Automatic choices beside fixed alternatives, in the same minutes on the same cores.

A cell of the table is a text, a unit (characters or words) and a number of minutes. In each cell
`elman train lm TEXT --minutes M` runs once as it is and once with each alternative's settings, as a
process of its own that is pinned to its own cores; the held-out text is then measured whole, as a
run under --minutes may have cut it. The alternatives are a fixed list and know nothing of the
automatic choice.

With `by_speed` (`by_speed.py`) a run makes the updates that its speed allows in the minutes, on any
core, so that a machine that others use will do; with `train_on` on a GPU, where the updates of
thirty minutes of two cores take about one.

Finished runs are lines of a JSONL file: a bench that was stopped continues.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from json import dumps, loads
from pathlib import Path
from queue import SimpleQueue
from shutil import rmtree
from threading import Lock
from typing import Any, NamedTuple

from elman.base.config import parse_overrides
from elman.base.counting import counted
from elman.base.documents import read_json, read_json_lines
from elman.base.errors import ElmanError, UsageError, nearest
from elman.base.files import write_text
from elman.base.threads import set_threads, threads_asked
from elman.bench.alternatives import ALTERNATIVES, Alternative
from elman.bench.by_speed import Timed, timed
from elman.bench.measuring import last_line
from elman.bench.rows import Row, less_is_better, note
from elman.recipes.resolve import resolve
from elman.recipes.writing import write_recipe
from elman.runs.run_folder import CONFIG_FILE
from elman.text.sources import expand
from elman.tokens.choose import choose

RUNS_FILE = "runs.jsonl"
TABLE_FILE = "table.md"
AUTOMATIC = "automatic"
UNITS = ("char", "word")
HELD_OUT = 0.1
"""The last part of a text that comes without one for validation."""
START_SECONDS = 30
"""Starting, reading the text and the evaluation after a run, for --within."""
_PINNED = """
import os, runpy
os.sched_setaffinity(0, {cores})
runpy.run_module("elman", run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True)
class BenchText:
    """A text to learn from, and what to validate on."""

    name: str
    train: str
    valid: str | None = None

    @classmethod
    def of(cls, text: str) -> BenchText:
        """Parse `name=train,valid`, a file, or the name of a built-in corpus."""
        name, equals, paths = text.partition("=")
        train, comma, valid = (paths if equals else text).partition(",")
        if not train or (comma and not valid) or not name:
            raise UsageError(f"'{text}' is not a text", "write NAME=TRAIN,VALID, or one file")
        for path in filter(None, (train, valid)):
            expand([path])  # raises an error if there is no such text
        return cls(name if equals else Path(train).stem, train, valid or None)

    def prepared(self, folder: Path) -> BenchText:
        """The same with a file for validation: if there is none, the end of the text."""
        if self.valid is not None:
            return self
        files = [folder / f"{self.name}.{part}.txt" for part in ("train", "valid")]
        if not all(file.is_file() for file in files):
            lines = "".join(
                path.read_text(encoding="utf-8") for path in expand([self.train])
            ).splitlines(keepends=True)
            held_out, size = 0, sum(map(len, lines))
            cut = len(lines)
            while cut > 1 and held_out < HELD_OUT * size:
                cut -= 1
                held_out += len(lines[cut])
            write_text(files[0], "".join(lines[:cut]))
            write_text(files[1], "".join(lines[cut:]))
        return BenchText(self.name, *map(str, files))


class Cell(NamedTuple):
    """What all choices have in common."""

    text: str
    unit: str
    minutes: float

    def __str__(self) -> str:
        units = {"char": "characters", "word": "words"}[self.unit]
        return f"{self.text}, {units}, {self.minutes:g} min"


@dataclass(frozen=True)
class Plan:
    """The runs of a bench."""

    texts: tuple[BenchText, ...]
    units: tuple[str, ...]
    minutes: tuple[float, ...]
    num_alternatives: int = 10
    only: tuple[str, ...] = ()
    """Names of the choices to measure; empty: all."""
    device: str = "cpu"
    """cpu or gpu."""
    seed: int = 1
    by_speed: bool = False
    train_on: str = ""
    """With `by_speed`, where to train what the speed on `device` allows; empty: there too."""

    def runs(self) -> list[tuple[Cell, str]]:
        """All runs: short ones first; the automatic choices early, so that a bench that is cut
        short has them, but not first, as the first runs of a cold machine are slower.
        """
        found = []
        for minutes in sorted(self.minutes):
            for number in range(self.num_alternatives + 1):
                for unit in self.units:
                    names = list(self.alternatives(unit))
                    names.insert(min(1, len(names)), AUTOMATIC)
                    cells = [Cell(text.name, unit, minutes) for text in self.texts]
                    found += [(cell, name) for cell in cells for name in names[number : number + 1]]
        return [run for run in found if not self.only or run[1] in self.only]

    def alternatives(self, unit: str) -> dict[str, Alternative]:
        chosen = ALTERNATIVES[unit, self.device][: self.num_alternatives]
        return {alternative.name: alternative for alternative in chosen}

    def command(self, cell: Cell, name: str, text: BenchText, out: Path) -> list[str]:
        """The arguments of `elman` for a run."""
        own = [] if name == AUTOMATIC else self.alternatives(cell.unit)[name].arguments(cell.unit)
        length = ["--minutes", f"{cell.minutes:g}"]
        if not cell.minutes:  # to warm up
            length = ["--steps", "2", "--set", "training.sample_length=0"]
        return [
            *("train", "lm", text.train, "--valid", str(text.valid)),
            *(*length, "--set", f"tokenizer.kind={_tokenizer(cell, text)}", *own),
            *("--seed", str(self.seed), "--device", self.torch_device),
            *("--out", str(out), "--json"),
        ]

    @property
    def torch_device(self) -> str:
        return "cuda" if self.device == "gpu" else "cpu"

    @property
    def training_device(self) -> str:
        return self.train_on or self.torch_device

    def timed(self, cell: Cell, name: str, text: BenchText, out: Path, threads: int) -> Timed:
        """The run by its speed, which is measured if `out` does not have it."""

        def settings() -> Any:
            given = [f"tokenizer.kind={_tokenizer(cell, text)}"]
            recipe = None
            if name != AUTOMATIC:
                alternative = self.alternatives(cell.unit)[name]
                recipe = alternative.recipe or None
                given += [] if recipe else alternative.arguments(cell.unit)[1::2]
            found = resolve(
                *("lm", [text.train]),
                valid=[str(text.valid)],
                recipe=recipe,
                settings=parse_overrides(given),
                minutes=cell.minutes,
                seed=self.seed,
                device=self.torch_device,
            )
            return found.config

        key = {**cell._asdict(), "choice": name, "device": self.device, "threads": threads}
        return timed(out, key, cell.minutes, settings, self.torch_device)


def _tokenizer(cell: Cell, text: BenchText) -> str:
    """The kind of tokenizer for a unit of text."""
    if cell.unit == "word" and choose([text.train]).kind == "pretokenized":
        return "pretokenized"
    return cell.unit


def make_plan(
    texts: Sequence[str],
    units: str,
    minutes: str,
    num_alternatives: int,
    only: Sequence[str],
    device: str,
    seed: int,
    by_speed: bool = False,
    train_on: str = "",
) -> Plan:
    """A plan from what the command line has."""
    if train_on and not by_speed:
        raise UsageError("--train-on needs --by-speed", "add --by-speed")
    chosen = tuple(BenchText.of(text) for text in texts)
    if len({text.name for text in chosen}) < len(chosen):
        raise UsageError("two texts have the same name", "write NAME=TRAIN,VALID")
    try:
        lengths = tuple(float(part) for part in minutes.split(","))
    except ValueError:
        lengths = ()
    if not lengths or min(lengths) <= 0:
        raise UsageError(f"'{minutes}' are not minutes", "write them as 1,5,30")
    kinds = tuple(part.strip() for part in units.split(","))
    for kind in kinds:
        if kind not in UNITS:
            raise UsageError(f"there is no unit '{kind}'", nearest(kind, UNITS))
    plan = Plan(
        *(chosen, kinds, lengths, num_alternatives, tuple(only)),
        *(device, seed, by_speed, train_on),
    )
    known = [AUTOMATIC, *(name for kind in kinds for name in plan.alternatives(kind))]
    for name in only:
        if name not in known:
            raise UsageError(f"there is no choice '{name}'", f"one of: {'; '.join(known)}")
    return plan


Runner = Callable[[Cell, str, Sequence[int]], dict[str, Any]]
"""Measures a choice in a cell on these cores; returns its figures."""


def measure(
    plan: Plan,
    out: Path,
    *,
    jobs: int = 1,
    threads: int = 2,
    within: float | None = None,
    renew: bool = False,
    run: Runner | None = None,
) -> list[dict[str, Any]]:
    """Measure the runs that `out` does not have, `jobs` at a time; return those of the plan.

    Starts no run that would end more than `within` minutes from now. `renew` measures automatic
    choices again.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if cores and jobs * threads > len(cores) and plan.training_device == "cpu":
        raise UsageError(
            f"{counted(jobs, 'job')} of {counted(threads, 'thread')} need {jobs * threads} cores, "
            f"and there are {len(cores)}",
            f"use --jobs {max(1, len(cores) // threads)}",
        )
    free: SimpleQueue[Sequence[int]] = SimpleQueue()
    for job in range(jobs):
        free.put(cores[job * threads : (job + 1) * threads])
    done = finished(out)
    waiting = [
        job
        for job in plan.runs()
        if _key(plan, *job) not in done or (renew and job[1] == AUTOMATIC)
    ]
    note(f"{counted(len(waiting), 'run')} to make, {len(plan.runs()) - len(waiting)} made before")
    started, lock = time.monotonic(), Lock()
    runner = run
    if runner is None:
        runner = _Processes(plan, out, threads)
        if plan.by_speed:
            runner.time(waiting)
        else:
            runner.warm_up(waiting)

    def work(job: tuple[Cell, str]) -> None:
        cell, name = job
        end = time.monotonic() - started + cell.minutes * 60 + START_SECONDS
        if within is not None and end > within * 60:
            return
        mine = free.get()
        try:
            found = runner(cell, name, mine)
        except ElmanError as error:
            note(f"{cell}: {name}: {error.message}")
            return
        finally:
            free.put(mine)
        row = {**cell._asdict(), "choice": name, "device": plan.device, "seed": plan.seed, **found}
        row |= {"by_speed": plan.by_speed, "train_on": plan.train_on}
        with lock, (out / RUNS_FILE).open("a", encoding="utf-8") as file:
            file.write(dumps(row) + "\n")
        note(f"{cell}: {name}: {found['perplexity']:.3f}, {counted(found['steps'], 'update')}")

    with ThreadPoolExecutor(jobs) as pool:
        try:
            list(pool.map(work, waiting))
        except BaseException:  # do not start the remaining runs, end those under way
            pool.shutdown(wait=False, cancel_futures=True)
            if isinstance(runner, _Processes):
                runner.stop()
            raise
    done = finished(out)
    rows = [done[key] for job in plan.runs() if (key := _key(plan, *job)) in done]
    write_text(out / TABLE_FILE, markdown(rows))
    return rows


def finished(out: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The runs in a folder, the last of each kind."""
    names = (*Cell._fields, "choice", "device", "seed")
    rows = read_json_lines(out / RUNS_FILE, missing_ok=True)
    return {(*(row[n] for n in names), row.get("by_speed", False)): row for row in rows}


def _key(plan: Plan, cell: Cell, name: str) -> tuple[Any, ...]:
    return (*cell, name, plan.device, plan.seed, plan.by_speed)


@dataclass
class _Processes:
    """Runs each choice as `elman train`, then `elman evaluate`, pinned to its cores."""

    plan: Plan
    out: Path
    threads: int
    under_way: set[subprocess.Popen[str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.texts = {text.name: text.prepared(self.out) for text in self.plan.texts}
        self.numbers = count()

    def warm_up(self, waiting: Sequence[tuple[Cell, str]]) -> None:
        """Compile loops and encode the texts, which are kept, so that no run pays for it."""
        first: dict[object, tuple[Cell, str]] = {}
        for cell, name in waiting:
            known = self.plan.alternatives(cell.unit)
            what = (known[name].cell if name in known else AUTOMATIC, cell.unit)
            first.setdefault((cell.text, cell.unit), (cell, name))
            first.setdefault(what, (cell, name))
        for cell, name in dict.fromkeys(first.values()):
            folder = self.out / "runs" / "first"
            rmtree(folder, ignore_errors=True)
            text = self.texts[cell.text]
            self._elman(self.plan.command(cell._replace(minutes=0), name, text, folder), ())
            rmtree(folder)

    def time(self, waiting: Sequence[tuple[Cell, str]]) -> None:
        """Measure the speeds of all runs, so that these do not need an idle machine."""
        for cell, name in waiting:
            try:
                self._timed(cell, name)
            except ElmanError as error:
                note(f"{cell}: {name}: {error.message}")

    def _timed(self, cell: Cell, name: str) -> Timed:
        before = threads_asked()
        set_threads(self.threads)
        try:
            return self.plan.timed(cell, name, self.texts[cell.text], self.out, self.threads)
        finally:
            set_threads(before)

    def __call__(self, cell: Cell, name: str, cores: Sequence[int]) -> dict[str, Any]:
        text = self.texts[cell.text]
        folder = self.out / "runs" / f"{os.getpid()}-{next(self.numbers)}"
        rmtree(folder, ignore_errors=True)
        command = self.plan.command(cell, name, text, folder)
        device, speed = self.plan.training_device, None
        if self.plan.by_speed:
            cores, run = (), self._timed(cell, name)
            speed, recipe = run.updates_per_second, folder.with_suffix(".toml")
            recipe.parent.mkdir(exist_ok=True)
            write_recipe(recipe, run.config, f"{cell}: {name}, {speed:.2f} updates/s")
            command = [
                *("train", "lm", text.train, "--valid", str(text.valid), "--device", device),
                *("--recipe", str(recipe), "--out", str(folder), "--json"),
                *("--set", "training.sample_length=0", "--seed", str(self.plan.seed)),
            ]
            if device != self.plan.torch_device:  # `auto` is not the same format there
                command += ["--set", "training.precision=float32"]
        summary = self._elman(command, cores)
        whole = self._elman(
            ["evaluate", str(folder), str(text.valid), "--device", device, "--json"], cores
        )
        config = read_json(folder / CONFIG_FILE)
        rmtree(folder)
        names = ("steps", "best_step", "tokens", "tokens_per_second", "seconds")
        return {
            "perplexity": whole["perplexity"],
            "bits_per_byte": whole["bits_per_byte"],
            **{key: summary[key] for key in names},
            **({} if speed is None else {"updates_per_second": speed}),
            "threads": self.threads,
            "settings": {
                group: {k: config[group][k] for k in config[group] if k in SHOWN[group]}
                for group in SHOWN
            },
        }

    def _elman(self, arguments: Sequence[str], cores: Sequence[int]) -> dict[str, Any]:
        start = ["-m", "elman"]
        if cores:
            start = ["-c", _PINNED.format(cores=set(cores))]
        process = subprocess.Popen(
            [sys.executable, *start, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(self.threads)},
        )
        self.under_way.add(process)
        stdout, stderr = process.communicate()
        self.under_way.discard(process)
        if process.returncode:
            errors = [line for line in stderr.splitlines() if line.startswith("error: ")]
            raise ElmanError(
                last_line("\n".join(errors) or stderr).removeprefix("error: "),
                f"try by hand: elman {' '.join(arguments)}",
            )
        found: dict[str, Any] = loads(stdout.splitlines()[-1])
        return found

    def stop(self) -> None:
        for process in list(self.under_way):
            process.terminate()


SHOWN: dict[str, tuple[str, ...]] = {
    "model": (
        *("cell", "num_layers", "hidden_size", "embedding_size", "tied", "head", "weight_drop"),
        *("dropout_embedding", "dropout_input", "dropout_hidden", "dropout_output"),
    ),
    "optimiser": ("kind", "learning_rate", "average"),
    "schedule": ("kind", "warmup_steps"),
    "training": ("batch_size", "chunk_length", "precision"),
}
"""Settings that a row keeps."""


def by_cell(rows: Iterable[Mapping[str, Any]]) -> dict[Cell, dict[str, Mapping[str, Any]]]:
    """The rows of each cell, by the name of the choice."""
    cells: dict[Cell, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        cell = Cell(*(row[name] for name in Cell._fields))
        cells.setdefault(cell, {})[row["choice"]] = row
    return cells


def compared(rows: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    """The automatic choice of each cell beside its best alternative."""
    for cell, found in by_cell(rows).items():
        ours = found.get(AUTOMATIC)
        if ours is None:
            continue
        others = {name: row for name, row in found.items() if name != AUTOMATIC}
        best = min(others, key=lambda name: others[name]["perplexity"], default=None)
        yield less_is_better(
            str(cell),
            ours["perplexity"],
            None if best is None else others[best]["perplexity"],
            "perplexity",
            cell=cell._asdict(),
            automatic=told(ours),
            beside=best,
            alternatives=len(others),
            behind=None if best is None else behind(ours, others[best]),
        )


def behind(ours: Mapping[str, Any], best: Mapping[str, Any]) -> float:
    """How far the automatic choice is behind, as a share of perplexity; negative if ahead."""
    return float(ours["perplexity"] / best["perplexity"] - 1)


def told(row: Mapping[str, Any]) -> str:
    """The settings of a run, like the name of an alternative."""
    model, optimiser, training = (row["settings"][n] for n in ("model", "optimiser", "training"))
    head = model["head"]
    return Alternative(
        cell=model["cell"],
        num_layers=model["num_layers"],
        hidden_size=model["hidden_size"],
        dropout=model["dropout_output"],
        optimiser=optimiser["kind"],
        learning_rate=optimiser["learning_rate"],
        batch_size=training["batch_size"],
        chunk_length=training["chunk_length"],
        num_samples=head["num_samples"] if head["kind"] == "sampled" else 0,
    ).name


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table of the cells, then one of all runs in each cell."""
    lines = [
        "| text | unit | minutes | automatic choice | perplexity | best alternative | perplexity "
        "| behind |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in compared(rows):
        about, cell = row.settings, row.settings["cell"]
        peer = "" if row.peer is None else f"{row.peer:.3f}"
        share = "" if about["behind"] is None else f"{about['behind']:+.1%}"
        lines.append(
            f"| {cell['text']} | {cell['unit']} | {cell['minutes']:g} | {about['automatic']} "
            f"| {row.ours:.3f} | {about['beside'] or ''} | {peer} | {share} |"
        )
    for where, found in by_cell(rows).items():
        lines += ["", f"## {where}", "", "| choice | perplexity | updates | tokens | tokens/s |"]
        lines.append("|---|---|---|---|---|")
        for name, run in sorted(found.items(), key=lambda item: item[1]["perplexity"]):
            shown = f"{name}: {told(run)}" if name == AUTOMATIC else name
            lines.append(
                f"| {shown} | {run['perplexity']:.3f} | {run['steps']:,} | {run['tokens']:,} "
                f"| {run['tokens_per_second']:,.0f} |"
            )
    return "\n".join(lines) + "\n"
