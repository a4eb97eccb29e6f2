"""What the list of claims keeps of earlier runs: main runs alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elman.base.cache import cache_folder
from elman.base.documents import write_json
from elman.lab.claims import experiment_named
from elman.lab.experiment import SEEDS, SIZE
from elman.lab.results import Result, remember, remembered
from elman.lab.verdicts import HOLDS, Finding

C3 = experiment_named("C3")
FINDING = Finding(
    question="drift", unit="", prediction=0.0, rule="below 1", effects=(0.1, 0.2),
    mean=0.15, low=0.1, high=0.2, verdict=HOLDS,
)  # fmt: skip
MAIN = Result(
    id="C3", knob=C3.knob.default, size=SIZE, seeds=list(range(1, SEEDS + 1)), findings=[FINDING],
    verdict=HOLDS, seconds=42.0, machine="here", rows=[],
)  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELMAN_CACHE", str(tmp_path))


def test_a_main_run_is_remembered() -> None:
    assert remembered(C3) == {}
    remember(C3, MAIN)
    noted = remembered(C3)
    assert (noted["verdict"], noted["seconds"]) == (HOLDS, 42.0)


@pytest.mark.parametrize(
    "change",
    [{"seeds": [1]}, {"size": "tiny"}, {"size": "large"}, {"knob": C3.knob.broken}],
    ids=str,
)
def test_other_runs_are_not(change: dict[str, Any]) -> None:
    remember(C3, replace(MAIN, seconds=1606.0, **change))
    assert remembered(C3) == {}


def test_more_seeds_give_a_verdict_but_no_time() -> None:
    remember(C3, replace(MAIN, seeds=list(range(1, 21)), seconds=1606.0))
    noted = remembered(C3)
    assert noted["verdict"] == HOLDS
    assert "seconds" not in noted


def test_what_earlier_versions_noted_of_other_runs_is_ignored() -> None:
    folder = cache_folder() / "lab"
    folder.mkdir()
    write_json(folder / "C3.json", replace(MAIN, seeds=[1]).to_dict())
    assert remembered(C3) == {}
    write_json(folder / "C3.json", {"verdict": HOLDS})
    assert remembered(C3) == {}
