"""Trials, pruning, budget and recovery of a search, with a training loop that is made up."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elman.base.config import to_dict
from elman.base.errors import ElmanError, UsageError
from elman.base.files import lock
from elman.recipes import search as searching
from elman.recipes import speed as measuring
from elman.recipes.resolve import resolve
from elman.recipes.search import open_search, run
from elman.recipes.search_plot import plot
from elman.recipes.search_space import DROPOUTS, dimensions, near
from elman.recipes.search_study import RUNGS, WARMUP, Search
from elman.recipes.speed import Speed
from elman.testing import TOY_TEXT
from elman.train.report import Report

optuna = pytest.importorskip("optuna")
STEPS = 80


@pytest.fixture
def text(tmp_path: Path) -> str:
    (tmp_path / "my.txt").write_text(TOY_TEXT)
    return str(tmp_path / "my.txt")


@pytest.fixture
def begin(text: str, tmp_path: Path) -> Callable[..., Search]:
    """Opens the search of a test."""

    def begin(**how: Any) -> Search:
        how = {"trial_minutes": 1.0, "steps": STEPS, "device": "cpu", **how}
        return open_search(tmp_path / "out", "lm", [text], tell=lambda text: None, **how)

    return begin


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replaces training: the loss falls to the distance of the learning rate from 0.03. Returns the
    configurations that were trained."""
    seen: list[Any] = []

    def train(config: Any, out: Path, **how: Any) -> Iterator[Report]:
        seen.append(config)
        steps, every = config.training.steps, config.training.validate_every
        bad = abs(math.log(config.optimiser.learning_rate / 0.03))
        for step in range(every, steps + every, every):
            step = min(step, steps)
            loss = 1 + bad + 1 - step / steps
            yield Report(kind="valid", step=step, valid_loss=loss, valid_perplexity=math.exp(loss))

    monkeypatch.setattr(searching, "train", train)
    return seen


def outcomes(search: Search) -> list[str]:
    return [trial.user_attrs.get("outcome", "") for trial in search.study().get_trials()]


def silent(search: Search, **how: Any) -> dict[str, Any]:
    said: list[str] = []
    return {**run(search, **{"minutes": 1.0, "tell": said.append, **how}), "said": said}


def test_trial_0_is_the_automatic_choice(begin: Callable, fake: list[Any], text: str) -> None:
    search = begin()
    silent(search, trials=1)
    expected = resolve("lm", [text], minutes=1.0, seed=1, device="cpu").config
    found, wanted = to_dict(fake[0]), to_dict(expected)
    for name in ("minutes", "steps", "validate_every", "checkpoint_seconds", "sample_length"):
        found["training"].pop(name)
        wanted["training"].pop(name)
    found["training"].pop("report_every"), wanted["training"].pop("report_every")
    assert found == wanted
    assert fake[0].training.steps == STEPS


def test_bad_trials_are_pruned_at_equal_tokens(begin: Callable, fake: list[Any]) -> None:
    search = begin()
    summary = silent(search, trials=24)
    assert summary["trials"] + summary["pruned"] == 24
    assert summary["pruned"] > 2
    for trial in search.study().get_trials():
        assert set(trial.intermediate_values) <= set(range(1, RUNGS + 1))
        if trial.state == optuna.trial.TrialState.PRUNED:
            assert max(trial.intermediate_values) >= WARMUP
    best = summary["best_figures"]["valid_loss"]
    assert best < summary["automatic_figures"]["valid_loss"]
    assert summary["importance"]["optimiser"] > 0  # with the other one the rate is converted
    tokens = [c.training.steps * c.training.batch_size * c.training.chunk_length for c in fake]
    assert tokens == pytest.approx([tokens[0]] * len(tokens), rel=0.05)


def test_the_recipe_has_the_best_settings(begin: Callable, fake: list[Any], text: str) -> None:
    summary = silent(begin(), trials=8)
    recipe = resolve("lm", [text], recipe=summary["recipe"], device="cpu").config
    assert recipe.optimiser.learning_rate == summary["best_values"]["learning_rate"]
    assert recipe.model.hidden_size == summary["best_values"]["hidden_size"]
    assert recipe.training.sample_length == 100
    svg = ElementTree.parse(summary["plot"]).getroot()
    circles = [one for one in svg.iter() if one.tag.endswith("circle")]
    assert len(circles) == (summary["trials"] + summary["pruned"]) * len(begin().space)


def test_a_search_goes_on(begin: Callable, fake: list[Any]) -> None:
    silent(begin(), trials=3)
    summary = silent(begin(), trials=5)
    assert len(fake) == 5
    assert all(one != other for one, other in combinations(fake, 2))
    assert summary["trials"] + summary["pruned"] == 5


def test_another_request_is_refused(begin: Callable, fake: list[Any], tmp_path: Path) -> None:
    begin()
    with pytest.raises(UsageError, match="another seed: 1"):
        begin(seed=2)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    with pytest.raises(UsageError, match="not empty"):
        open_search(tmp_path / "mine", "lm", ["x"], trial_minutes=1, tell=print)


def test_a_killed_trial_is_tried_again(begin: Callable, fake: list[Any]) -> None:
    """Its process holds no lock any more; a trial of a live process is left alone."""
    search = begin()
    study = search.study()
    for number in (0, 1):
        trial = study.ask()
        asked = {one.name: one.suggest(trial) for one in search.space}
        (search.folder / "trials" / str(number)).mkdir(parents=True)
    alive = lock(search.folder / "trials" / "1")
    silent(search, trials=2)
    (config,) = fake
    assert config.optimiser.learning_rate == search.automatic["optimiser"]["learning_rate"]
    states = [trial.state.name for trial in study.get_trials()]
    assert states == ["FAIL", "RUNNING", "COMPLETE"]
    assert alive is not None
    os.close(alive)
    silent(search, trials=2)
    assert fake[1] == replace(search.config(asked), training=fake[1].training)


def test_without_locks_a_trial_is_dead_after_an_hour(
    begin: Callable, fake: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A live trial was repeated at once, by every other process."""
    monkeypatch.setattr(searching, "lock", lambda folder: None)
    search = begin()
    study = search.study()
    asked = study.ask()
    for one in search.space:
        one.suggest(asked)
    place = search.folder / "trials" / "0"
    (place / "run").mkdir(parents=True)
    searching._retry_killed(search, study)
    assert [trial.state.name for trial in study.get_trials()] == ["RUNNING"]
    for path in (place, place / "run"):
        os.utime(path, (0, 0))
    searching._retry_killed(search, study)
    assert [trial.state.name for trial in study.get_trials()] == ["FAIL", "WAITING"]


@pytest.mark.parametrize("how", ["report", "exception"])
def test_an_interruption_of_the_speed_writes_the_results(
    how: str, begin: Callable, fake: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended the search without recipe, plot and summary."""
    fast = lambda *given: Speed(1.0, 1.0, 100.0)  # noqa: E731
    measured = searching.training_speed
    monkeypatch.setattr(searching, "training_speed", fast)
    search = begin(steps=None)
    silent(search, trials=2)
    monkeypatch.setattr(searching, "training_speed", measured)
    (search.folder / "recipe.toml").unlink()

    def interrupted(*given: Any, **how_: Any) -> Iterator[Report]:
        if how == "exception":
            raise KeyboardInterrupt
        yield Report(kind="stopped", step=1)

    for module in (searching, measuring):
        monkeypatch.setattr(module, "train", interrupted)
    summary = silent(search, trials=9)
    assert summary["interrupted"]
    assert summary["trials"] == 2
    assert (search.folder / "recipe.toml").is_file()
    assert outcomes(search)[-2:] == ["interrupted", ""]


def test_an_interruption_before_the_first_trial_leaves_nothing(
    begin: Callable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stopped = lambda *given, **how: iter([Report(kind="stopped", step=1)])  # noqa: E731
    monkeypatch.setattr(measuring, "train", stopped)
    with pytest.raises(KeyboardInterrupt):
        begin(steps=None)
    assert not (tmp_path / "out").exists()


def test_time_is_kept(begin: Callable, fake: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial is stopped at the end, and comes first when the search goes on."""
    search = begin()
    summary = silent(search, minutes=1e-9)
    assert not fake
    assert "best" not in summary
    clock = iter(range(10**6))
    monkeypatch.setattr(searching.time, "monotonic", lambda: 4.0 * next(clock))
    summary = silent(search, minutes=1.0)
    monkeypatch.undo()
    assert outcomes(search)[-2:] == ["out of time", ""]
    assert search.study().get_trials()[-1].state.name == "WAITING"


def test_a_slow_trial_is_pruned(
    begin: Callable, fake: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    search = begin()
    monkeypatch.setattr(searching, "first_seconds", lambda study: -1.0)
    silent(search, trials=2)
    assert all("times as slow" in one for one in outcomes(search))


def test_a_trial_that_fails_is_told(
    begin: Callable, fake: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    search = begin()
    silent(search, trials=1)
    made = searching.train

    def fail(*given: Any, **how: Any) -> Iterator[Report]:
        raise ElmanError("the loss is not finite", "lower the rate")
        yield from made(*given, **how)

    monkeypatch.setattr(searching, "train", fail)
    summary = silent(search, trials=3)
    assert summary["failed"] == 2
    assert "failed: the loss is not finite" in summary["said"][0]


def test_without_optuna(begin: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ElmanError, match="Optuna") as caught:
        begin()
    assert "elman[search]" in caught.value.hint


def test_counting_has_nothing_to_search(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing to search"):
        open_search(tmp_path / "out", "ngram", [text], trial_minutes=1)


SETTINGS: dict[str, Any] = {
    "model": {"cell": "lstm", "hidden_size": 100, "embedding_size": 100, "num_layers": 1}
    | {"dropout_output": 0.2, "dropout_hidden": 0.2, "dropout_input": 0.0},
    "optimiser": {"learning_rate": 0.01},
    "training": {"batch_size": 14, "chunk_length": 64},
}


@given(st.floats(0, 1))
def test_every_value_is_in_the_space(share: float) -> None:
    for one in dimensions(SETTINGS):
        assert one.changes(one.start) == dict.fromkeys(one.settings, one.start)
        if one.choices:
            continue
        value = one.low + share * (one.high - one.low)
        found = one.changes(value)
        assert set(found) == set(one.settings)
        for changed in found.values():
            assert changed == pytest.approx(value, abs=max(one.multiple, 0.01 * value))
            assert changed > 0 or one.name in DROPOUTS


def test_dropout_between_layers_is_read_by_several(begin: Callable) -> None:
    search = begin()
    params = {one.name: one.start for one in search.space}
    settings = []
    for num_layers in (1, 2):
        changed = {**params, "dropout_hidden": 0.3, "num_layers": num_layers}
        settings.append(search.config(changed).model.dropout_hidden)
    assert settings == [0.0, 0.3]


def test_tied_embeddings_are_as_wide_as_the_layers() -> None:
    space = {one.name: one for one in dimensions(SETTINGS)}
    wide = {"model.hidden_size": 200, "model.embedding_size": 200}
    assert space["hidden_size"].changes(200.0) == wide


def test_another_optimiser_gets_a_rate_of_its_own(begin: Callable) -> None:
    """At twice the usual rate of adam, sgd gets twice its own."""
    search = begin(settings={"optimiser.kind": "adam", "optimiser.learning_rate": 0.01})
    params = {one.name: one.start for one in search.space} | {"optimiser": "sgd"}
    config = search.config(params)
    assert (config.optimiser.kind, config.optimiser.learning_rate) == ("sgd", 40.0)
    assert config.training.clip_norm == search.automatic["training"]["clip_norm"] / 4
    assert search.values(params)["learning_rate"] == 40.0
    assert search.rounded(params)["learning_rate"] == 0.01


@given(st.integers(0, 10**6))
def test_a_near_trial_changes_a_few_settings(seed: int) -> None:
    space = dimensions(SETTINGS)
    start = {one.name: one.start for one in space}
    changed = near(space, start, Random(seed))
    assert changed.keys() == start.keys()
    assert changed != start
    for one in space:
        if not one.choices:
            assert one.low <= changed[one.name] <= one.high


def test_trials_have_equal_minutes(
    begin: Callable, fake: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial that is twice as slow makes half of the updates, and is validated after as many
    tokens as trial 0."""
    speeds = iter([Speed(10.0, 10.0, 1000.0)] + 4 * [Speed(5.0, 5.0, 500.0)])
    monkeypatch.setattr(searching, "training_speed", lambda *given: next(speeds))
    search = begin(steps=None, trial_minutes=1.0)
    assert search.steps == 600
    silent(search, trials=5)
    first = fake[0].training
    assert first.steps == 600
    for config in fake[1:]:
        training = config.training
        tokens = training.batch_size * training.chunk_length
        per_rung = tokens * training.validate_every
        assert per_rung == pytest.approx(120 * first.batch_size * first.chunk_length, rel=0.05)
        assert tokens * training.steps == pytest.approx(2.5 * per_rung, rel=0.05)


def test_a_trial_that_is_behind_at_equal_tokens_only_goes_on(
    begin: Callable, fake: list[Any]
) -> None:
    """A faster trial has its learning rate still to lower: at equal tokens it looks worse."""
    search = begin()
    silent(search, trials=1)
    study = search.study()
    (trial,) = study.get_trials()
    (share, then), *_ = trial.user_attrs["curve"]
    assert not searching._is_behind(study, share / 2, then)
    assert not searching._is_behind(study, share, then)
    assert searching._is_behind(study, share, then + 0.1)
    assert searching._is_behind(study, 2 * share, then)


def test_a_plot_without_trials_is_an_image() -> None:
    ElementTree.fromstring(plot(dimensions(SETTINGS), [], {}))
