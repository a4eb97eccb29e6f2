"""docs/lab: results that are kept in the repository, with the pages that they make."""

from __future__ import annotations

from pathlib import Path

import pytest

from elman.lab import pages, results
from elman.lab.claims import PUBLISHED, experiments
from elman.lab.experiment import Experiment
from elman.lab.verdicts import answers, joint
from elman.terminal.console import finite

ROOT = Path(__file__).parents[3]
KEPT = ROOT / "docs" / "lab"
EXPERIMENTS = {experiment.id: experiment for experiment in experiments()}


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=EXPERIMENTS)
def test_verdicts_follow_from_the_data(experiment: Experiment) -> None:
    """For the default, other values of the knob, and the larger size."""
    folders = [path.parent for path in (KEPT / experiment.id).rglob(results.RESULT_FILE)]
    assert KEPT / experiment.id in folders
    for folder in folders:
        kept = results.read_result(folder)
        found = answers(experiment, kept.rows)
        assert joint(found) == kept.verdict, folder
        for now, then in zip(found, kept.findings, strict=True):
            # Sums differ in the last place between versions of Python.
            same = pytest.approx(finite(then.effects), rel=1e-9, abs=1e-9)
            assert finite(now.effects) == same, folder
            assert (now.question, now.rule, now.verdict) == (then.question, then.rule, then.verdict)
        if folder == KEPT / experiment.id:
            assert kept.verdict == PUBLISHED[experiment.id]
        assert kept.knob == experiment.knob.default or f"knob-{kept.knob}" == folder.name


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=EXPERIMENTS)
def test_pages_are_what_the_command_writes(experiment: Experiment) -> None:
    folder = KEPT / experiment.id
    places = [folder, *pages._places(folder)]
    found = [results.read_result(place) for place in places]
    page = pages.markdown(experiment, folder, found)
    assert page == (folder / results.PAGE_FILE).read_text(encoding="utf-8")
    assert all((p / name).is_file() for p in places for name in ("figure.svg", "figure-dark.svg"))


def test_overviews_are_what_the_command_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = (KEPT / results.PAGE_FILE).read_text(encoding="utf-8")
    assert kept == pages.overview(EXPERIMENTS.values(), KEPT)
    monkeypatch.chdir(ROOT)
    table = pages.verdict_table(EXPERIMENTS.values(), Path("docs/lab"))
    assert table in (ROOT / "README.md").read_text(encoding="utf-8")
