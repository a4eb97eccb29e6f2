"""Comparisons with and without embeddings: what is run, and what is made of the figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from elman.base.errors import UsageError
from elman.bench import lifts
from elman.bench.lifts import LiftPlan, LiftTask, compare, spread


def test_a_task_is_read_off_the_command_line(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).touch()
    a, b, c = (str(tmp_path / name) for name in "abc")
    tagger = LiftTask.of("tagger", f"upos={a},{b},{c}")
    assert tagger.command(2) == ["train", "tagger", a, "--valid", b, "--test", c]
    spam = LiftTask.of("classifier", f"spam={a}")
    held_out = ["--set", "data.test_fraction=0.2", "--set", "data.split_seed=2"]
    assert spam.command(2) == ["train", "classifier", a, *held_out]
    for kind, text in (
        ("tagger", f"upos={a},{b}"),
        ("tagger", f"upos={a}"),
        ("classifier", f"={a}"),
        ("classifier", a),
        ("classifier", f"spam={a},{b}"),
        ("classifier", f"../spam={a}"),
        ("classifier", f"spam={a}-nowhere"),
    ):
        with pytest.raises(UsageError):
            LiftTask.of(kind, text)


def test_the_arms_differ_in_the_embeddings_alone(tmp_path: Path) -> None:
    task = LiftTask("spam", "classifier", "spam.tsv")
    settings = ("model.hidden_size=8", "model.embeddings.dropout=0.1")
    plan = LiftPlan("/elmo", (task,), 2, ("--epochs", "3"), settings, "cpu")
    runs = list(plan.runs())
    assert [run.folder for run in runs] == [
        *("spam/without-1", "spam/with-1", "spam/without-2", "spam/with-2")
    ]
    without, with_them = (plan.command(run, tmp_path) for run in runs[:2])
    more = ["--embeddings", "/elmo", "--set", "model.embeddings.dropout=0.1"]
    assert [word for word in with_them if word not in without] == [*more[:2], more[3]]
    assert "--epochs" in without
    assert plan.command(runs[2], tmp_path)[-7:-5] == ["--seed", "2"]


def test_lifts_are_paired_by_seed() -> None:
    without, with_them = (
        [{"test_accuracy": accuracy, "steps": steps, "seconds": 2.5} for accuracy, steps in runs]
        for runs in ([(0.9, 40), (0.8, 40)], [(0.95, 30), (0.87, 32)])
    )
    found = compare("upos", without, with_them)
    assert found["lift"] == pytest.approx(0.06)
    assert found["lift_deviation"] == pytest.approx(spread([0.05, 0.07]))
    assert found["ours"] == pytest.approx(0.91)
    assert found["peer_deviation"] == pytest.approx(0.1 / 2**0.5)
    assert found["settings"]["updates"] == {"without": [40, 40], "with": [30, 32]}
    assert found["settings"]["seconds"] == 10
    assert found["layer_weights"] == {}
    assert spread([1.0]) == 0.0


def test_a_run_that_has_reported_nothing_is_not_finished(tmp_path: Path) -> None:
    assert lifts._summary(tmp_path) is None
    (tmp_path / "metrics.jsonl").touch()
    assert lifts._summary(tmp_path) is None
