"""Search for settings that train better than the automatic choice: `elman search`.

Trial 0 is the automatic choice. Every other trial has its minutes: the updates that it makes in
them, by its measured speed, with a learning rate that falls over these updates (`--steps`: the same
tokens instead, whatever time they take). A slower model must learn more from fewer tokens.

A trial is stopped (pruned) if at equal tokens it is worse than the median of the finished ones, and
at an equal share of the time as well: at equal tokens alone a fast trial, whose learning rate
has further to fall, would seem worse than it is. With `--steps`, so is one that takes more than
`SLOWEST` times as long as trial 0.

The first trials change a few settings of the best one so far. From `NEAR_TRIALS` on every other
one is proposed by Optuna's model of the results.

    search.json     what is searched: task, data, the automatic choice, updates of a trial
    journal.log     the trials (Optuna's journal): any number of processes append to it
    trials/N        the lock of trial N; in run/, its run folder if it is the best one
    recipe.toml     the best settings so far, for `elman train --recipe`
    trials.svg      what mattered

A trial whose process was killed holds no lock, and is tried again.
"""

from __future__ import annotations

import math
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from elman.base.config import to_dict
from elman.base.documents import read_json, write_json
from elman.base.errors import ElmanError, UsageError
from elman.base.files import lock, make_folder
from elman.recipes.resolve import absolute_paths, read_over, resolve
from elman.recipes.run import train
from elman.recipes.search_results import figure_of, write_recipe, write_results
from elman.recipes.search_space import near
from elman.recipes.search_study import (
    LEAST_STEPS,
    RUNGS,
    Search,
    best_trial,
    first_seconds,
    is_finished,
    locked,
    num_tried,
    optuna_module,
    seconds_of,
)
from elman.recipes.speed import Interrupted, training_speed
from elman.runs.new_folder import missing, remove_empty
from elman.tasks import task_named
from elman.train.report import Report

if TYPE_CHECKING:
    import optuna

SEARCH_FILE = "search.json"
SHARE = 12
"""A trial of the automatic choice takes one part in this many of the time."""
SLOWEST = 2.0
NEAR_TRIALS = 20
"""Trials after which Optuna's model of the results chooses every other one: with fewer it knows too
little of 15 settings (docs/log/2026-11-18-search.md)."""
MOST_FASTER = 4.0
"""Limit on the updates of a trial, as a multiple or a fraction of those at equal tokens."""
ENOUGH = 0.6
"""A trial begins if so much of the usual time of one is left."""
SILENT = 3600.0
"""Seconds without a report after which a trial is taken for dead where folders have no locks."""
SLACK = 1.5
"""Seconds that are kept for writing the results."""


class OutOfTime(Exception):
    """The trial was stopped at the end of the search."""


def open_search(
    folder: Path,
    task: str,
    data: Sequence[str],
    *,
    valid: Sequence[str] = (),
    recipe: str | None = None,
    settings: Mapping[str, Any] | None = None,
    trial_minutes: float,
    steps: int | None = None,
    seed: int = 1,
    device: str = "auto",
    tell: Callable[[str], None] = print,
) -> Search:
    """Open the study in `folder`, or begin one. A study goes on only with the same request."""
    optuna_module()
    if task_named(task).fit is not None:
        raise UsageError(
            f"{task_named(task).what} is fitted by counting, which has nothing to search",
            "search for the settings of a network, such as: elman search lm",
        )
    asked: dict[str, Any] = {
        "task": task,
        "data": absolute_paths(data),
        "valid": absolute_paths(valid),
        "recipe": recipe,
        "settings": dict(settings or {}),
        "seed": seed,
    }
    with _made(folder), locked(folder):
        path = folder / SEARCH_FILE
        if not path.is_file():
            if any(folder.iterdir()):
                raise UsageError(
                    f"{folder} is not empty, and has no search", "name another folder with --out"
                )
            resolved = resolve(
                task,
                data,
                valid=valid,
                recipe=recipe,
                settings=settings,
                minutes=trial_minutes,
                seed=seed,
                device=device,
            )
            for note in resolved.notes:
                tell(note)
            automatic = to_dict(resolved.config)
            speed = None
            if steps is None:
                config, _ = read_over(task_named(task), dict(automatic), {})
                try:
                    measured = training_speed(config, folder / "speed", device)
                except Interrupted as stopped:
                    raise KeyboardInterrupt from stopped  # there are no results yet
                steps, speed = round(60 * trial_minutes * measured.updates), measured.idle_tokens
            kept = {"automatic": automatic, "steps": max(LEAST_STEPS, steps), "speed": speed}
            write_json(path, {"asked": asked, **kept}, seal=True)
        found = read_json(path)
        for name, value in asked.items():
            if found["asked"].get(name) != value:
                raise UsageError(
                    f"the search in {folder} has another {name}: {found['asked'].get(name)}",
                    "repeat its command to go on with it, or name another folder with --out",
                )
        if "speed" not in found:
            raise UsageError(
                f"the search in {folder} was begun by an earlier version",
                "name another folder with --out",
            )
        search = Search(
            folder, task, found["automatic"], found["steps"], found["speed"], device, seed
        )
        study = search.study()
        if not study.get_trials(deepcopy=False):
            study.enqueue_trial({one.name: one.start for one in search.space})
    return search


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """Make a folder; at the end, remove what was made and is empty."""
    made = missing(folder)
    try:
        make_folder(folder)
        yield
    finally:
        remove_empty(made)


def run(
    search: Search,
    *,
    minutes: float,
    trials: int | None = None,
    started: float | None = None,
    tell: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Try settings until the time is over; return the summary. Several processes may do so."""
    started = time.monotonic() if started is None else started
    deadline = started + 60 * minutes - SLACK
    study = search.study()
    interrupted = False
    while not interrupted:
        with locked(search.folder):
            _retry_killed(search, study)
            if trials is not None and num_tried(study) >= trials:
                break
            seconds = seconds_of(study)
            if time.monotonic() + (ENOUGH * median(seconds) if seconds else 0) >= deadline:
                break
            trial = _ask(search, study)
            params = {one.name: one.suggest(trial) for one in search.space}
            place = search.folder / "trials" / str(trial.number)
            make_folder(place)
            claim = lock(place)
        try:
            interrupted = _run_trial(search, study, trial, params, deadline, tell)
        finally:
            if not (place / "run").is_dir():
                shutil.rmtree(place, ignore_errors=True)
            if claim is not None:
                os.close(claim)
    summary = write_results(search, study)
    summary["interrupted"] = interrupted
    summary["seconds"] = time.monotonic() - started
    return summary


def _ask(search: Search, study: optuna.Study) -> optuna.Trial:
    """The next trial: one that waits to be repeated, one near the best one, or Optuna's."""
    trials = study.get_trials(deepcopy=False)
    seed = 1000 * search.seed + len(trials)
    is_waiting = any(t.state == optuna_module().trial.TrialState.WAITING for t in trials)
    if not is_waiting and (len(trials) < NEAR_TRIALS or len(trials) % 2):
        best, chance = best_trial(study), random.Random(seed)
        params = best.params if best else {one.name: one.start for one in search.space}
        changed = near(search.space, params, chance)
        while not _is_another(search, changed, params):
            changed = near(search.space, params, chance)
        study.enqueue_trial(changed)
    study.sampler = optuna_module().samplers.TPESampler(
        seed=seed, n_startup_trials=NEAR_TRIALS, constant_liar=True
    )
    trial: optuna.Trial = study.ask()
    return trial


def _is_another(search: Search, changed: Mapping[str, Any], params: Mapping[str, Any]) -> bool:
    """Whether a change is possible, and of something that is read."""
    try:
        return bool(search.config(changed) != search.config(params))
    except ElmanError:
        return False


def _run_trial(
    search: Search,
    study: optuna.Study,
    trial: optuna.Trial,
    params: Mapping[str, Any],
    deadline: float,
    tell: Callable[[str], None],
) -> bool:
    """Run a trial and record its outcome; return whether a signal stopped it."""
    interrupted = False
    states = optuna_module().trial.TrialState
    place = search.folder / "trials" / str(trial.number) / "run"
    begun = time.monotonic()
    state, value, said = states.FAIL, None, ""
    try:
        value = _trained(search, study, trial, params, place, deadline)
        state, said = states.COMPLETE, figure_of(trial.user_attrs)
    except optuna_module().TrialPruned as pruned:
        state, said = states.PRUNED, str(pruned)
    except (OutOfTime, Interrupted, KeyboardInterrupt) as stopped:
        interrupted = not isinstance(stopped, OutOfTime)
        said = "interrupted" if interrupted else str(stopped)
        study.enqueue_trial(dict(params))
    except ElmanError as error:
        if trial.number == 0:
            study.tell(trial, state=states.FAIL)
            raise
        said = f"failed: {error}"
    except BaseException:
        study.enqueue_trial(dict(params))
        study.tell(trial, state=states.FAIL)
        raise
    trial.set_user_attr("seconds", round(time.monotonic() - begun, 3))
    trial.set_user_attr("outcome", said)
    study.tell(trial, value, state=state)
    with locked(search.folder):
        best = best_trial(study)
        for other in (search.folder / "trials").iterdir():
            is_mine = other.name == str(trial.number)
            done = is_mine or is_finished(study, int(other.name))
            if done and (best is None or other.name != str(best.number)):
                shutil.rmtree(other / "run", ignore_errors=True)
                if not is_mine:
                    shutil.rmtree(other, ignore_errors=True)
        if best is not None and best.number == trial.number:
            write_recipe(search, best)
    what = ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in search.values(params).items()
    )
    tell(f"trial {trial.number}: {said} ({what})")
    return interrupted


def _trained(
    search: Search,
    study: optuna.Study,
    trial: optuna.Trial,
    params: Mapping[str, Any],
    place: Path,
    deadline: float,
) -> float:
    """Train; return the best criterion of the validations."""
    optuna = optuna_module()
    config = search.config(params)
    per_rung = steps = config.training.steps
    if search.speed is not None and trial.number:
        speed = training_speed(config, place.parent / "speed", search.device).idle_tokens
        faster = min(MOST_FASTER, max(1 / MOST_FASTER, speed / search.speed))
        steps = max(LEAST_STEPS, round(faster * steps))
    trial.set_user_attr("steps", steps)
    every = math.ceil(per_rung / RUNGS)
    loop: dict[str, Any] = {"validate_every": every, "checkpoint_seconds": 3600.0, "patience": 0}
    if "sample_length" in search.automatic["training"]:
        loop["sample_length"] = 0
    loop |= {"report_every": min(20, every), "steps": steps}
    config = search.config(params, loop)
    best, last, begun = math.inf, 0, time.monotonic()
    slowest = math.inf if search.speed is not None else SLOWEST * first_seconds(study)
    curve: list[tuple[float, float]] = []
    for report in train(config, place, device=search.device):
        now = time.monotonic()
        if report.kind == "valid":
            value = _criterion(report)
            if value < best:
                best = value
                trial.set_user_attr("figures", _figures(report))
            share = report.step / steps
            curve.append((share, best))
            trial.set_user_attr("curve", curve)
            if (rung := report.step // every) > last:
                trial.report(best, last := rung)
                is_worse = trial.number and share < 1 and trial.should_prune()
                if is_worse and _is_behind(study, share, best):
                    said = figure_of(trial.user_attrs)
                    raise optuna.TrialPruned(f"pruned at {share:.0%}, {said}")
        if report.kind == "stopped":
            raise Interrupted("interrupted")
        if report.kind in ("step", "valid") and report.step < steps:
            if now > deadline:
                raise OutOfTime("out of time")
            if now - begun > slowest:
                raise optuna.TrialPruned(f"pruned: more than {SLOWEST:g} times as slow as trial 0")
    return best


def _is_behind(study: optuna.Study, share: float, value: float) -> bool:
    """Whether a trial is worse than the median of the finished ones after this share of its run."""
    import numpy as np

    states = optuna_module().trial.TrialState
    done = study.get_trials(deepcopy=False, states=(states.COMPLETE,))
    then = []
    for trial in done:
        shares, values = zip(*trial.user_attrs["curve"], strict=True)
        then.append(float(np.interp(share, shares, values)))
    return value > median(then)


def _retry_killed(search: Search, study: optuna.Study) -> None:
    """Enqueue the trials again whose processes have died: they hold no lock, or, if the system has
    no locks, wrote nothing for `SILENT` seconds."""
    states = optuna_module().trial.TrialState
    for trial in study.get_trials(deepcopy=False, states=(states.RUNNING,)):
        place = search.folder / "trials" / str(trial.number)
        try:
            descriptor = lock(place) if place.is_dir() else None
        except BlockingIOError:
            continue
        if descriptor is not None:
            os.close(descriptor)
        elif place.is_dir() and time.time() - _last_written(place) < SILENT:
            continue
        study.tell(trial.number, state=states.FAIL)
        if len(trial.params) == len(search.space):
            study.enqueue_trial(dict(trial.params))
        shutil.rmtree(place, ignore_errors=True)


def _last_written(folder: Path) -> float:
    """The time of the newest file of a folder."""
    times = [folder.stat().st_mtime]
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            times.append(path.stat().st_mtime)
    return max(times)


def _criterion(report: Report) -> float:
    """What the loop minimises: the loss, or the negated first metric."""
    if report.valid_loss is not None:
        return report.valid_loss
    return -next(iter((report.valid_metrics or {}).values()), math.nan)


def _figures(report: Report) -> dict[str, float]:
    names = ("valid_perplexity", "valid_bits_per_byte", "valid_loss")
    found = {name: getattr(report, name) for name in names}
    found |= {f"valid_{name}": value for name, value in (report.valid_metrics or {}).items()}
    return {name: value for name, value in found.items() if value is not None}
