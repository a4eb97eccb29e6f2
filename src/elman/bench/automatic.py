"""Automatic choices beside fixed alternatives, in the same minutes on the same cores.

A cell of the table is a text, a unit (characters or words) and a number of minutes. In each cell
`elman train lm TEXT --minutes M` runs once as it is and once with each alternative's settings, as a
process of its own that is pinned to its own cores; the held-out text is then measured whole, as a
run under --minutes may have cut it. The alternatives are a fixed list and know nothing of the
automatic choice.

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
from json import dumps, loads
from pathlib import Path
from queue import SimpleQueue
from shutil import rmtree
from threading import Lock
from typing import Any, NamedTuple

from elman.base.counting import counted
from elman.base.documents import read_json, read_json_lines
from elman.base.errors import ElmanError, UsageError, nearest
from elman.base.files import write_text
from elman.bench.measuring import last_line
from elman.bench.rows import Row, less_is_better, note
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
class Alternative:
    """A sensible choice that somebody might make by hand."""

    cell: str = ""
    num_layers: int = 0
    hidden_size: int = 0
    dropout: float = 0.0
    optimiser: str = ""
    learning_rate: float = 0.0
    batch_size: int = 0
    chunk_length: int = 0
    num_samples: int = 0
    """Noise words of a sampled output layer; 0 for a full one."""
    recipe: str = ""
    """A recipe to take as it is, instead of all of these."""

    @property
    def name(self) -> str:
        if self.recipe:
            return self.recipe
        parts = [
            f"{self.cell} {self.num_layers}x{self.hidden_size}",
            *([f"{self.num_samples} samples"] if self.num_samples else []),
            *([f"dropout {self.dropout:g}"] if self.dropout else []),
            f"{self.optimiser} {self.learning_rate:g}",
            f"{self.batch_size}x{self.chunk_length}",
        ]
        return ", ".join(parts)

    def arguments(self, unit: str) -> list[str]:
        """The options of `elman train lm`; embeddings of words are tied to the output layer."""
        if self.recipe:
            return ["--recipe", self.recipe]
        is_word = unit == "word"
        values: dict[str, object] = {
            "model.cell": self.cell,
            "model.num_layers": self.num_layers,
            "model.hidden_size": self.hidden_size,
            "model.embedding_size": self.hidden_size if is_word else 64,
            "model.tied": is_word,
            "model.head.kind": "sampled" if self.num_samples else "full",
            **({"model.head.num_samples": self.num_samples} if self.num_samples else {}),
            "model.dropout_input": self.dropout if is_word else 0,
            "model.dropout_hidden": self.dropout if self.num_layers > 1 else 0,
            "model.dropout_output": self.dropout,
            "optimiser.kind": self.optimiser,
            "optimiser.learning_rate": self.learning_rate,
            "schedule.kind": "cosine",
            "schedule.warmup_steps": 100,
            "training.batch_size": self.batch_size,
            "training.chunk_length": self.chunk_length,
            "training.clip_norm": 0.25 if self.optimiser == "sgd" else 1,
            "training.precision": "auto",
            **PLAIN,
        }
        words = (("--set", f"{key}={dumps(value).strip(QUOTE)}") for key, value in values.items())
        return [word for pair in words for word in pair]


QUOTE = '"'
PLAIN: dict[str, object] = {
    **{f"model.{name}": 0 for name in ("weight_drop", "dropout_embedding")},
    **{f"objective.{name}": 0 for name in ("activation_penalty", "change_penalty")},
    **{f"training.{name}": False for name in ("vary_chunks", "shuffle_lanes")},
    "model.locked": False,
    "optimiser.average": "none",
    "optimiser.weight_decay": 0,
}
"""Settings of all alternatives: without the parts of AWD-LSTM."""
# fmt: off
ALTERNATIVES: dict[tuple[str, str], list[Alternative]] = {
    #            cell  layers hidden dropout optimiser rate batch chunk samples
    ("char", "cpu"): [
        Alternative("gru",  1,  256,  0.0,  "adam",  0.005,  16,   64),
        Alternative("lstm", 1,  256,  0.0,  "adam",  0.005,  16,   64),
        Alternative("gru",  1,  128,  0.0,  "adam",  0.01,   16,   64),
        Alternative("lstm", 1,  256,  0.0,  "adam",  0.007,   8,   64),
        Alternative("lstm", 1,  384,  0.1,  "adam",  0.007,  16,   64),
        Alternative("gru",  1,  512,  0.2,  "adam",  0.003,  16,   64),
        Alternative("lstm", 1,  512,  0.2,  "adam",  0.005,  32,   64),
        Alternative("lstm", 1,  512,  0.1,  "adam",  0.006,  32,  128),
        Alternative("lstm", 2,  256,  0.2,  "adam",  0.004,  16,   64),
        Alternative("lstm", 2,  512,  0.4,  "adam",  0.003,  32,   64),
    ],
    ("word", "cpu"): [
        Alternative("lstm", 1,  256,  0.1,  "adam",  0.003,  20,   35,  1024),
        Alternative("lstm", 1,  128,  0.0,  "adam",  0.005,  20,   35,  1024),
        Alternative("lstm", 1,  256,  0.2,  "sgd",    20.0,  20,   35,  1024),
        Alternative("gru",  1,  256,  0.2,  "adam",  0.003,  20,   35,  1024),
        Alternative("lstm", 1,  200,  0.5,  "sgd",    20.0,  16,   35),
        Alternative("lstm", 1,  256,  0.3,  "adam",  0.003,  10,   35,   512),
        Alternative("lstm", 1,  400,  0.4,  "adam",  0.003,  20,   35,  1024),
        Alternative("lstm", 1,  400,  0.4,  "sgd",    20.0,  20,   35,  1024),
        Alternative("lstm", 2,  200,  0.3,  "sgd",    20.0,  20,   35),
        Alternative("lstm", 1,  512,  0.5,  "sgd",    20.0,  20,   35,  1024),
    ],
    ("char", "gpu"): [
        Alternative("lstm", 2,  512,  0.3,  "adam",  0.003,  32,  128),
        Alternative("lstm", 1,  512,  0.3,  "adam",  0.003,  16,   64),
        Alternative("gru",  2,  512,  0.3,  "adam",  0.002,  32,  128),
        Alternative("lstm", 2,  768,  0.4,  "adam",  0.002,  64,  128),
        Alternative("lstm", 2,  768,  0.5,  "adam",  0.002,  32,   64),
        Alternative("lstm", 2, 1024,  0.5,  "adam",  0.002,  64,  128),
        Alternative("lstm", 3,  512,  0.4,  "adam",  0.003,  64,  128),
        Alternative("lstm", 3,  768,  0.5,  "adam",  0.002,  64,  128),
        Alternative("lstm", 1, 1024,  0.4,  "adam",  0.002,  32,   64),
        Alternative(recipe="awd-lstm"),
    ],
    ("word", "gpu"): [
        Alternative(recipe="awd-lstm"),
        Alternative("lstm", 2,  650,  0.5,  "sgd",    20.0,  20,   35),
        Alternative("lstm", 2,  650,  0.5,  "adam",  0.002,  20,   35),
        Alternative("lstm", 2,  650,  0.5,  "sgd",    20.0,  40,   70),
        Alternative("lstm", 2,  400,  0.4,  "sgd",    20.0,  20,   35),
        Alternative("lstm", 2, 1024, 0.65,  "sgd",    20.0,  20,   35),
        Alternative("lstm", 2, 1024, 0.65,  "adam",  0.001,  40,   70),
        Alternative("lstm", 3,  650,  0.5,  "sgd",    20.0,  20,   70),
        Alternative("lstm", 1,  650,  0.6,  "sgd",    20.0,  20,   35),
        Alternative("lstm", 1,  400,  0.5,  "adam",  0.003,  20,   35),
    ],
}
# fmt: on
"""By unit and kind of machine: cells, widths, depths, batches, dropouts and optimisers that are
usual at these sizes, the most promising first.
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
        kind = cell.unit
        if kind == "word" and choose([text.train]).kind == "pretokenized":
            kind = "pretokenized"
        own = [] if name == AUTOMATIC else self.alternatives(cell.unit)[name].arguments(cell.unit)
        length = ["--minutes", f"{cell.minutes:g}"]
        if not cell.minutes:  # to warm up
            length = ["--steps", "2", "--set", "training.sample_length=0"]
        return [
            *("train", "lm", text.train, "--valid", str(text.valid)),
            *(*length, "--set", f"tokenizer.kind={kind}", *own),
            *("--seed", str(self.seed), "--device", "cuda" if self.device == "gpu" else "cpu"),
            *("--out", str(out), "--json"),
        ]


def make_plan(
    texts: Sequence[str],
    units: str,
    minutes: str,
    num_alternatives: int,
    only: Sequence[str],
    device: str,
    seed: int,
) -> Plan:
    """A plan from what the command line has."""
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
    plan = Plan(chosen, kinds, lengths, num_alternatives, tuple(only), device, seed)
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
    if cores and jobs * threads > len(cores):
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
    if not (out / RUNS_FILE).is_file():
        return {}
    names = (*Cell._fields, "choice", "device", "seed")
    return {tuple(row[n] for n in names): row for row in read_json_lines(out / RUNS_FILE)}


def _key(plan: Plan, cell: Cell, name: str) -> tuple[Any, ...]:
    return (*cell, name, plan.device, plan.seed)


@dataclass
class _Processes:
    """Runs each choice as `elman train`, then `elman evaluate`, pinned to its cores."""

    plan: Plan
    out: Path
    threads: int
    under_way: set[subprocess.Popen[str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.texts = {text.name: text.prepared(self.out) for text in self.plan.texts}

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

    def __call__(self, cell: Cell, name: str, cores: Sequence[int]) -> dict[str, Any]:
        text = self.texts[cell.text]
        folder = self.out / "runs" / f"{os.getpid()}-{'-'.join(map(str, cores))}"
        rmtree(folder, ignore_errors=True)
        command = self.plan.command(cell, name, text, folder)
        summary = self._elman(command, cores)
        device = command[command.index("--device") + 1]
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
