"""Results in files: rows as JSON lines, what they say as JSON.

A folder of results has a folder for each claim, such as C1, with

    data.jsonl      the rows
    result.json     effects, intervals and the verdict
    figure.svg, figure-dark.svg, figure.png
    README.md       the page

Results of another knob value or size are in folders inside it, such as C1/knob-2.
"""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from elman.base.cache import cache_folder, wanted_folder
from elman.base.documents import intact, read_json, read_json_lines, write_json
from elman.base.errors import ElmanError
from elman.base.files import write_text
from elman.lab.experiment import SEEDS, SIZE, Experiment, Row, Size
from elman.lab.verdicts import Finding, Verdict
from elman.runs.machine import machine
from elman.terminal.console import finite

DATA_FILE, RESULT_FILE, PAGE_FILE = "data.jsonl", "result.json", "README.md"


@dataclass(frozen=True, kw_only=True)
class Result:
    """What an experiment found."""

    id: str
    knob: Any
    size: Size
    seeds: list[int]
    findings: list[Finding]
    verdict: Verdict
    seconds: float
    machine: str
    rows: list[Row] = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without the rows; the first question is the one that names the effect."""
        first = self.findings[0]
        return {
            "id": self.id,
            "prediction": first.prediction,
            "effect": first.mean,
            "interval": [first.low, first.high],
            "seeds": self.seeds,
            "verdict": self.verdict,
            "knob": self.knob,
            "size": self.size,
            "findings": [asdict(finding) for finding in self.findings],
            "seconds": self.seconds,
            "machine": self.machine,
        }


def machine_words(device: str) -> str:
    """The machine in a few words."""
    where = machine(device)
    return f"{where.description}, {platform.machine()}" if not where.is_gpu else where.description


def place(folder: Path, experiment: Experiment, knob: Any, size: Size) -> Path:
    """The folder of a result in a folder of results."""
    own = folder / experiment.id
    if size != SIZE:
        own = own / size
    return own if knob == experiment.knob.default else own / f"knob-{knob}"


def save(result: Result, folder: Path) -> None:
    """Write rows and result into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(finite(row)) + "\n" for row in result.rows]
    write_text(folder / DATA_FILE, "".join(lines))
    write_json(folder / RESULT_FILE, finite(result.to_dict()))


def read_rows(folder: Path) -> list[Row]:
    return read_json_lines(folder / DATA_FILE)


def read_result(folder: Path) -> Result:
    """Read what `save` wrote."""
    path = folder / RESULT_FILE
    value = read_json(path)
    with intact(path):
        findings = [
            Finding(**{**each, "effects": tuple(each["effects"])}) for each in value["findings"]
        ]
        return Result(
            findings=findings,
            rows=read_rows(folder),
            **{key: value[key] for key in ("id", "knob", "size", "seeds", "verdict")},
            **{key: value[key] for key in ("seconds", "machine")},
        )


def remember(experiment: Experiment, result: Result) -> None:
    """Note the verdict of a main run in the cache folder, for the list of claims.

    A main run has the default knob and size, and at least the default number of seeds. The time is
    noted if there were no more seeds than that.
    """
    noted = finite(result.to_dict())
    del noted["findings"]
    if not _is_main(experiment, noted):
        return
    if len(result.seeds) > SEEDS:
        del noted["seconds"]
    folder = cache_folder() / "lab"
    folder.mkdir(exist_ok=True)
    write_json(folder / f"{result.id}.json", noted)


def remembered(experiment: Experiment) -> dict[str, Any]:
    """What was noted of a claim on this machine; empty if it was not run, or cannot be read."""
    path = wanted_folder() / "lab" / f"{experiment.id}.json"
    if not os.path.isfile(path):
        return {}
    try:
        found = read_json(path)
        with intact(path):
            return dict(found) if _is_main(experiment, found) else {}
    except ElmanError:
        return {}


def _is_main(experiment: Experiment, noted: dict[str, Any]) -> bool:
    is_default = noted["size"] == SIZE and noted["knob"] == finite(experiment.knob.default)
    return is_default and len(noted["seeds"]) >= SEEDS and "verdict" in noted
