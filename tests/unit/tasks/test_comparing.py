from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest

from elman.base.errors import UsageError
from elman.tasks.comparing import compare, run_folders

SPECIMENS = Path(__file__).parents[1] / "runs" / "specimens"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name in ("lm", "lm-adaptive", "ngram"):
        shutil.copytree(SPECIMENS / f"format-1-{name}", tmp_path / "runs" / name)
    (tmp_path / "runs" / "notes").mkdir()
    return tmp_path / "runs"


def test_what_differs_and_the_figures(runs: Path) -> None:
    found = {Path(run.run).name: run for run in compare([runs / "lm", runs / "lm-adaptive"])[0]}
    assert found["lm"].settings["model.head.kind"] == "full"
    assert found["lm-adaptive"].settings["model.head.kind"] == "adaptive"
    assert "format" not in found["lm"].settings
    assert found["lm"].figures["perplexity"] > 1
    assert found["lm"].finished


def test_the_best_is_first_by_bits_per_byte(runs: Path) -> None:
    found, _ = compare([runs])
    bits = [run.figures.get("bits_per_byte", math.inf) for run in found]
    assert len(found) == 3
    assert bits == sorted(bits)


def test_settings_that_other_tasks_lack_do_not_differ(runs: Path) -> None:
    shutil.copytree(SPECIMENS / "format-1-classifier", runs / "classifier")
    found, _ = compare([runs])
    assert {run.task for run in found} == {run.settings["task"] for run in found}
    names = {name for run in found for name in run.settings}
    assert "model.kind" in names
    assert "model.order" not in names
    assert "model.pooling" not in names
    assert not any(name.endswith("_share") for run in found for name in run.figures)


def test_a_run_that_has_not_ended_has_its_best_validation(runs: Path) -> None:
    metrics = runs / "lm" / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(line for line in lines if '"kind": "done"' not in line))
    (run,), _ = compare([runs / "lm"])
    assert not run.finished
    assert run.figures["perplexity"] > 1
    assert run.settings == {}


def test_folders_that_are_no_runs(runs: Path) -> None:
    assert run_folders([runs / "notes", runs / "lm"]) == ([runs / "lm"], [runs / "notes"])
    assert run_folders([runs / "ngram", runs / "lm"])[1] == []
    with pytest.raises(UsageError, match="is not a run folder"):
        compare([runs / "notes"])
    with pytest.raises(UsageError, match="there is no run folder"):
        compare([runs / "mine"])
