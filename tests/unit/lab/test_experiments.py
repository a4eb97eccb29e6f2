"""Every experiment, at its tiny size: rows that answer its questions, a figure, a page."""

from __future__ import annotations

import json
import math
import re
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from elman.base.errors import UsageError
from elman.lab import pages, results, run_claim
from elman.lab.claims import CLAIMS, experiment_named
from elman.lab.experiment import Trial
from elman.lab.figures import picture
from elman.lab.running import Run, concluded


@pytest.mark.parametrize("id", CLAIMS)
def test_a_tiny_run_answers_the_questions_and_makes_a_page(id: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    experiment = experiment_named(id)
    assert experiment.id == id
    torch.manual_seed(1)
    folder = tmp_path / "seed"
    folder.mkdir()
    trial = Trial(seed=1, knob=experiment.knob.default, size="tiny", device="cpu", folder=folder)
    found = list(experiment.measure(trial))
    rows = [{"seed": seed, **row} for seed in (1, 2) for row in found]
    json.dumps(rows)
    result = concluded(Run(experiment=experiment, size="tiny"), rows, 1.0)
    assert not any(math.isnan(finding.mean) for finding in result.findings)
    figure = experiment.figure(rows)
    for panel in figure.panels:
        assert panel.x_label
        assert panel.y_label
        assert any(series.y for series in panel.series), panel.title
    for number in range(1, len(found)):  # while it runs; what the server expects of it
        with suppress(LookupError, ValueError, ArithmeticError):
            experiment.figure(rows[:number])
    own = tmp_path / id
    results.save(result, own)
    pages.write_page(experiment, own)
    page = (own / "README.md").read_text()
    assert f"Verdict here: {result.verdict}" in page
    assert results.read_result(own).findings == result.findings
    for place in re.findall(r"\(\.\./\.\./\.\./src/([^#)]+)", page):
        assert (Path(__file__).parents[3] / "src" / place).is_file()


def test_a_figure_drawn_again_is_the_same() -> None:
    pytest.importorskip("matplotlib")
    rows = [{"seed": 1, "cell": cell, "step": 1, "drift": 1e-9} for cell in ("lstm", "gru")]
    figure = experiment_named("C3").figure(rows)
    assert picture(figure, "svg") == picture(figure, "svg")


@pytest.mark.parametrize("id", CLAIMS)
def test_the_knob_takes_its_values(id: str) -> None:
    knob = experiment_named(id).knob
    assert knob.default in knob.values
    assert knob.broken in knob.values
    for value in knob.values:
        assert knob.parse(str(value)) == value


def test_python_refuses_a_knob_that_does_not_exist() -> None:
    with pytest.raises(UsageError, match="the knob 'equal' has no value 'parameter'"):
        run_claim("C4", knob="parameter")
