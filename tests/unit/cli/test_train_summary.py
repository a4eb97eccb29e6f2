"""The summary that `elman train` prints."""

from __future__ import annotations

from typing import Any

import pytest

from elman.cli.train import best_model

SUMMARY = {"steps": 4000, "seconds": 60.0, "best_seconds": 9.0}


@pytest.mark.parametrize(
    ("best", "told"),
    [
        (4000, None),
        (3900, "after 3,900 of 4,000 updates, at 9 s"),
        (
            600,
            "after 600 of 4,000 updates, at 9 s; training longer did not help: try a shorter "
            "run, more dropout or more text",
        ),
        (0, "the one at the start: training did not improve it on the validation text"),
    ],
)
def test_the_row_of_the_best_model(best: int, told: str | None) -> None:
    assert best_model({**SUMMARY, "best_step": best}) == told


@pytest.mark.parametrize(
    "figures",
    [
        {"accuracy": 1.0, "macro_f1": 1.0},
        {"f1": 1.0, "accuracy": 0.999},
        {"bleu": 100.00000000000004, "perplexity": 1.2},
    ],
)
def test_no_advice_where_nothing_can_be_gained(figures: dict[str, float]) -> None:
    told = best_model({**figures, **SUMMARY, "best_step": 600})
    assert told == "after 600 of 4,000 updates, at 9 s; it makes no mistake on the validation text"


def test_advice_where_only_another_figure_is_at_its_best() -> None:
    told = best_model({"f1": 0.6, "precision": 1.0, "recall": 0.43, **SUMMARY, "best_step": 600})
    assert told is not None
    assert "training longer did not help" in told


def test_no_advice_after_few_validations() -> None:
    summary = {**SUMMARY, "best_step": 600}
    assert best_model({**summary, "later_validations": 2}) == "after 600 of 4,000 updates, at 9 s"
    advice = best_model({**summary, "later_validations": 3})
    assert advice is not None
    assert "training longer did not help" in advice


def test_runs_of_earlier_versions_have_no_time_of_the_best_model() -> None:
    summary: dict[str, Any] = {"steps": 40, "best_step": 38, "seconds": 60.0}
    assert best_model(summary) == "after 38 of 40 updates"
    assert best_model({"steps": 40, "seconds": 60.0}) is None
