"""Parts of published recipes, one at a time: what each brings to a small language model.

Every part is a setting. A base is trained with and without it, at equal updates, with several
seeds, on the first lines of a text, which are read several times: regularisers show little on a
text that is read once. The validation text decides which update is kept, and when averages start;
figures are of the test text. Parts that only measure (`adapting`) read the base's model again.

Finished runs are lines of a JSONL file: a bench that was stopped continues.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from json import dumps
from pathlib import Path
from shutil import rmtree
from statistics import fmean
from typing import Any

from elman.base.counting import counted
from elman.base.documents import read_json_lines
from elman.base.files import write_text
from elman.bench.alternatives import PLAIN
from elman.bench.lifts import spread
from elman.bench.rows import note
from elman.bench.sizes import parse_names
from elman.bench.training import train_run
from elman.terminal.console import table
from elman.text.sources import expand, file_lines

RUNS_FILE = "ablations.jsonl"
TABLE_FILE = "table.md"
HELD_OUT = 8
"""The validation text, which is read often, has one line for each `HELD_OUT` lines of the training
text; the test text has as many lines as the training text."""
VALIDATIONS = 16
ANNEALED, CONSTANT, AVERAGED = "Adam, cosine", "SGD, constant rate", "triggered average"
"""What parts are added to. Averages of weights are for a rate that does not fall; fine-tuning is
for such an average, itself a part."""

SHARED = (
    *("tokenizer.kind=pretokenized", "tokenizer.vocab_size=3000"),
    *("model.cell=lstm", "model.num_layers=2", "model.hidden_size=128", "model.embedding_size=128"),
    *("model.tied=true", "model.head.kind=full"),
    *("model.dropout_input=0.3", "model.dropout_hidden=0.3", "model.dropout_output=0.3"),
    *("training.batch_size=20", "training.chunk_length=35", "training.sample_length=0"),
    "training.precision=auto",
    *(f"{name}={dumps(value)}" for name, value in PLAIN.items()),
)
"""Of every run."""
_ADAM = ("optimiser.kind=adam", "optimiser.learning_rate=0.005", "training.clip_norm=1")
_SGD = ("optimiser.kind=sgd", "optimiser.learning_rate=8", "training.clip_norm=0.25")
_ANNEALED = (*_ADAM, "schedule.kind=cosine", "schedule.warmup_steps=50")
_CONSTANT = (*_SGD, "schedule.kind=constant", "schedule.warmup_steps=0")
_TRIGGERED = (
    *("optimiser.average=triggered", "optimiser.non_monotone_interval=2"),
    f"optimiser.average_latest={VALIDATIONS // 2}",
)
BASES: dict[str, tuple[str, ...]] = {ANNEALED: _ANNEALED, CONSTANT: _CONSTANT}


@dataclass(frozen=True)
class Part:
    """A part of a published recipe."""

    paper: str
    settings: tuple[str, ...] = ()
    """What is set besides those of the base."""
    base: str = ANNEALED
    """A base, or another part."""
    adapting: Mapping[str, Any] = field(default_factory=dict)
    """How to measure the base's model, for a part that is not trained."""


MERITY = "Merity and others, 2018"
MELIS = "Melis and others, 2018"
PENALTIES = ("objective.activation_penalty=2", "objective.change_penalty=1")
PARTS: dict[str, Part] = {
    "locked dropout": Part("Gal and Ghahramani, 2016", ("model.locked=true",)),
    "weight drop 0.3": Part(MERITY, ("model.weight_drop=0.3",)),
    "activation penalties 2, 1": Part("Merity and others, 2017", PENALTIES),
    "varying chunk lengths": Part(MERITY, ("training.vary_chunks=true",)),
    "these four together": Part(
        MERITY,
        ("model.locked=true", "model.weight_drop=0.3", "training.vary_chunks=true", *PENALTIES),
    ),
    "partial shuffle": Part("Press, 2019", ("training.shuffle_lanes=true",)),
    "mixture of 5 softmaxes": Part(
        "Yang and others, 2018", ("model.head.kind=mixture", "model.head.num_components=5")
    ),
    "adversarial softmax 0.01": Part("Wang, Gong and Liu, 2019", ("model.head.adversarial=0.01",)),
    "RMSprop": Part(MELIS, ("optimiser.kind=rmsprop",)),
    "state dropout 0.2": Part("Gal and Ghahramani, 2016", ("model.dropout_state=0.2",)),
    "capped input gate": Part(MELIS, ("model.cap_input=true",)),
    "sum of layers": Part(MELIS, ("model.sum_layers=true",)),
    "random state reset 0.01": Part(MELIS, ("training.reset_state=0.01",)),
    "Mogrifier, 5 rounds": Part("Melis and others, 2020", ("model.mogrify_rounds=5",)),
    "tuned temperature": Part(MELIS, adapting={"tune": "valid"}),
    "10 dropout masks at test time": Part("Gal and Ghahramani, 2016", adapting={"samples": 10}),
    "exponential average, annealed": Part(
        "Polyak and Juditsky, 1992",
        ("optimiser.average=exponential", "optimiser.average_decay=0.99"),
    ),
    "exponential average": Part(
        "Polyak and Juditsky, 1992",
        ("optimiser.average=exponential", "optimiser.average_decay=0.99"),
        CONSTANT,
    ),
    AVERAGED: Part(MERITY, _TRIGGERED, CONSTANT),
    "two-tailed average": Part("Melis, 2022", ("optimiser.average=two_tailed",), CONSTANT),
    "fine-tuning restart": Part(MERITY, ("optimiser.restarts=1",), AVERAGED),
}
"""By name: the parts, with the paper that each is from."""


@dataclass(frozen=True)
class AblationPlan:
    """The runs of a bench."""

    texts: tuple[str, str, str]
    """For training, validation and test."""
    names: tuple[str, ...] = tuple(PARTS)
    num_lines: int = 2000
    steps: int = 800
    num_seeds: int = 2
    settings: tuple[str, ...] = ()
    """Of every run, over those of the base and of the part."""

    def runs(self) -> list[tuple[str, int]]:
        """Names of parts and bases, and seeds: seed by seed, each base before its parts."""
        found: dict[tuple[str, int], None] = {}
        for seed in range(1, self.num_seeds + 1):
            for name in self.names:
                found[PARTS[name].base, seed] = None
                found[name, seed] = None
        return list(found)

    def about(self) -> dict[str, Any]:
        """What the figures of a run depend on besides its part and seed."""
        length = {"lines": self.num_lines, "steps": self.steps}
        return {"texts": list(self.texts), **length, "settings": list(self.settings)}


def settings_of(name: str) -> tuple[str, ...]:
    """The settings of a part or a base, besides those that all runs share."""
    if name in BASES:
        return BASES[name]
    return (*settings_of(PARTS[name].base), *PARTS[name].settings)


def parse_parts(text: str | None) -> tuple[str, ...]:
    return tuple(PARTS) if text is None else tuple(parse_names(text, PARTS, "part"))


def measure(plan: AblationPlan, out: Path) -> list[dict[str, Any]]:
    """Make the runs that `out` does not have; return a JSON row for each part that has some."""
    missing = set(plan.runs()) - set(finished(plan, out))
    note(f"{counted(len(missing), 'run')} to make, {len(plan.runs()) - len(missing)} made before")
    texts = _cut(plan, out)
    for name, seed in plan.runs():
        if (name, seed) not in missing:
            continue
        part = PARTS.get(name)
        trained = part.base if part is not None and part.adapting else name
        for found, figures in _runs(plan, trained, seed, texts, out / "runs"):
            if (found, seed) not in missing:
                continue
            missing.discard((found, seed))
            row = {"part": found, "seed": seed, **plan.about(), **figures}
            with (out / RUNS_FILE).open("a", encoding="utf-8") as file:
                file.write(dumps(row) + "\n")
            note(f"{found}, seed {seed}: {figures['perplexity']:.2f}")
    rows = compared(plan, finished(plan, out))
    write_text(out / TABLE_FILE, markdown(rows))
    return rows


def finished(plan: AblationPlan, out: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """The runs in a folder that belong to a plan."""
    rows = read_json_lines(out / RUNS_FILE, missing_ok=True)
    about = plan.about()
    return {
        (row["part"], row["seed"]): row
        for row in rows
        if {name: row.get(name) for name in about} == about
    }


def _cut(plan: AblationPlan, out: Path) -> tuple[Path, Path, Path]:
    """Files with the first lines of the texts."""
    held_out = max(1, plan.num_lines // HELD_OUT)
    files = []
    counts = (plan.num_lines, held_out, plan.num_lines)
    for name, text, count in zip(("train", "valid", "test"), plan.texts, counts, strict=True):
        lines = (line for path in expand([text]) for line in file_lines(path))
        files.append(out / f"{name}.txt")
        write_text(files[-1], "".join(f"{line.rstrip()}\n" for line in islice(lines, count)))
    return files[0], files[1], files[2]


def _runs(
    plan: AblationPlan, name: str, seed: int, texts: tuple[Path, Path, Path], folder: Path
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Train a part or a base; yield its figures, and those of the ways to measure this model."""
    from elman.api import LM, load

    train, valid, test = map(str, texts)
    settings = (*SHARED, *settings_of(name))
    settings += (f"training.validate_every={max(1, plan.steps // VALIDATIONS)}", *plan.settings)
    out = folder / f"{name.replace(' ', '-')}-{seed}"
    rmtree(out, ignore_errors=True)
    before = time.process_time()
    summary, _ = train_run(
        *("lm", [train], settings, out),
        valid=[valid],
        test=[test],
        steps=plan.steps,
        seed=seed,
        device="cpu",
    )
    yield (
        name,
        {
            "perplexity": summary["test_perplexity"],
            "valid_perplexity": summary["perplexity"],
            "best_step": summary["best_step"],
            "tokens": summary["tokens"],
            "cpu_seconds": round(time.process_time() - before, 2),
        },
    )
    for other, measured in PARTS.items():
        if other in plan.names and measured.adapting and measured.base == name:
            how: dict[str, Any]
            how = {key: [valid] if key == "tune" else v for key, v in measured.adapting.items()}
            lm = load(str(out), device="cpu", kind=LM).adapting(**how)
            yield (
                other,
                {"perplexity": lm.evaluate([test]).perplexity, "adaptation": lm.adaptation},
            )
    rmtree(out)


def compared(
    plan: AblationPlan, found: Mapping[tuple[str, int], Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The JSON row of each part: `ours` with it, `peer` without, means over the seeds that both
    have; `change` is the mean relative change, negative if the part helps.
    """
    rows = []
    for name in plan.names:
        base = PARTS[name].base
        pairs = [
            (found[base, seed], found[name, seed])
            for seed in range(1, plan.num_seeds + 1)
            if (base, seed) in found and (name, seed) in found
        ]
        if not pairs:
            continue
        peers, ours = ([run["perplexity"] for run in runs] for runs in zip(*pairs, strict=True))
        changes = [b / a - 1 for a, b in zip(peers, ours, strict=True)]
        costs = [b["cpu_seconds"] / a["cpu_seconds"] for a, b in pairs if "cpu_seconds" in b]
        rows.append(
            {
                "name": name,
                "ours": fmean(ours),
                "peer": fmean(peers),
                "ratio": fmean(peers) / fmean(ours),
                "unit": "perplexity",
                "change": fmean(changes),
                "change_deviation": spread(changes),
                "cost": fmean(costs) if costs else None,
                "settings": {
                    "with": ours,
                    "without": peers,
                    "base": base,
                    "paper": PARTS[name].paper,
                    **plan.about(),
                },
            }
        )
    return rows


HEADER = ("part", "paper", "base", "without", "with", "change", "processor time")


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """A row of the tables; the change is a mean with its standard deviation over seeds."""
    about = row["settings"]
    deviation = f" ± {100 * row['change_deviation']:.1f}" if len(about["with"]) > 1 else ""
    change = f"{100 * row['change']:+.1f} %{deviation}"
    cost = "" if row["cost"] is None else f"x {row['cost']:.2f}"
    values = (f"{row['peer']:.2f}", f"{row['ours']:.2f}")
    return (row["name"], about["paper"], about["base"], *values, change, cost)


def ablation_table(rows: Sequence[Mapping[str, Any]]) -> str:
    return table([_cells(row) for row in rows], HEADER)


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [HEADER, ("---",) * len(HEADER), *map(_cells, rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
