"""Search for settings that train better than the automatic choice: `elman search`.

Trial 0 is the automatic choice. Every trial reads as many tokens as that one, with a learning rate
that falls over these tokens, so that trials can be compared at equal tokens: one that is worse
there than the median of the finished ones is stopped (pruned). So is one that takes more than
`SLOWEST` times as long as trial 0.

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
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from elman.base.config import merge, nested, to_dict
from elman.base.documents import read_json, write_json
from elman.base.errors import ElmanError, UsageError
from elman.base.files import lock, make_folder, write_text
from elman.recipes.resolve import absolute_paths, read_over, resolve
from elman.recipes.run import train
from elman.recipes.search_plot import plot
from elman.recipes.search_space import Dimension, Tried, dimensions, importance
from elman.recipes.writing import toml_lines
from elman.runs.run_folder import CONFIG_FILE
from elman.tasks import task_named
from elman.train.report import Report

if TYPE_CHECKING:
    import optuna

SEARCH_FILE, JOURNAL_FILE = "search.json", "journal.log"
RECIPE_FILE, PLOT_FILE = "recipe.toml", "trials.svg"
SHARE = 12
"""A trial of the automatic choice takes one part in this many of the time."""
RUNGS = 8
"""Validations of a trial, at equal tokens."""
SLOWEST = 2.0
UNPRUNED = 3
"""Trials that must have finished before one is pruned."""
WARMUP = 2
"""The first rung at which a trial is judged."""
RANDOM_TRIALS = 6
"""Trials drawn at random before Optuna's model of the results chooses."""
SPEED_STEPS = 40
"""Updates with which the speed is measured."""
LEAST_STEPS = RUNGS
ENOUGH = 0.6
"""A trial begins if so much of the usual time of one is left."""
SLACK = 1.5
"""Seconds that are kept for writing the results."""
WAIT = 0.05
"""Seconds between attempts to lock the folder of the study."""


class OutOfTime(Exception):
    """The trial was stopped at the end of the search."""


class Interrupted(Exception):
    """A signal asked to stop."""


@dataclass(frozen=True)
class Search:
    """A study in a folder."""

    folder: Path
    task: str
    automatic: Mapping[str, Any]
    """The settings of trial 0."""
    steps: int
    """The updates of trial 0."""
    device: str
    seed: int

    @property
    def space(self) -> list[Dimension]:
        return dimensions(self.automatic)

    def config(self, params: Mapping[str, Any], loop: Mapping[str, Any] | None = None) -> Any:
        """The configuration of a trial, with settings of the loop for the search itself."""
        changes: dict[str, Any] = {}
        for dimension in self.space:
            changes |= dimension.changes(params[dimension.name])
        # What a trial leaves without a reader, such as dropout between layers of one, is dropped.
        base = merge(dict(self.automatic), nested(changes))
        asked = {"training": {"steps": self.num_steps(changes), **(loop or {})}}
        config, _ = read_over(task_named(self.task), base, asked)
        return config

    def values(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The value of each dimension in a trial."""
        return {one.name: one.rounded(params[one.name]) for one in self.space}

    def num_steps(self, changes: Mapping[str, Any]) -> int:
        """The updates in which a trial reads the tokens of trial 0."""
        training, steps = self.automatic["training"], float(self.steps)
        for name in ("batch_size", "chunk_length"):
            if before := training.get(name):
                steps *= before / changes.get(f"training.{name}", before)
        return max(LEAST_STEPS, round(steps))

    def study(self) -> optuna.Study:
        library = _optuna()
        backend = library.storages.journal.JournalFileBackend(str(self.folder / JOURNAL_FILE))
        study: optuna.Study = library.create_study(
            storage=library.storages.JournalStorage(backend),
            study_name=self.task,
            load_if_exists=True,
            pruner=library.pruners.MedianPruner(
                UNPRUNED, n_warmup_steps=WARMUP, n_min_trials=UNPRUNED
            ),
        )
        return study


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
    _optuna()
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
    make_folder(folder)
    with _locked(folder):
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
            if steps is None:
                steps = _measured_steps(folder, task, automatic, 60 * trial_minutes, device)
            kept = {"automatic": automatic, "steps": max(LEAST_STEPS, steps)}
            write_json(path, {"asked": asked, **kept}, seal=True)
        found = read_json(path)
        for name, value in asked.items():
            if found["asked"].get(name) != value:
                raise UsageError(
                    f"the search in {folder} has another {name}: {found['asked'].get(name)}",
                    "repeat its command to go on with it, or name another folder with --out",
                )
        search = Search(folder, task, found["automatic"], found["steps"], device, seed)
        study = search.study()
        if not study.get_trials(deepcopy=False):
            study.enqueue_trial({one.name: one.start for one in search.space})
    return search


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
        with _locked(search.folder):
            _retry_killed(search, study)
            if trials is not None and _num_tried(study) >= trials:
                break
            seconds = _seconds(study)
            if time.monotonic() + (ENOUGH * median(seconds) if seconds else 0) >= deadline:
                break
            number = len(study.get_trials(deepcopy=False))
            study.sampler = _optuna().samplers.TPESampler(
                seed=1000 * search.seed + number,
                n_startup_trials=RANDOM_TRIALS,
                constant_liar=True,
            )
            trial = study.ask()
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
    states = _optuna().trial.TrialState
    place = search.folder / "trials" / str(trial.number) / "run"
    begun = time.monotonic()
    state, value, said = states.FAIL, None, ""
    try:
        value = _trained(search, study, trial, params, place, deadline)
        state, said = states.COMPLETE, _figure(trial.user_attrs)
    except _optuna().TrialPruned as pruned:
        state, said = states.PRUNED, str(pruned)
    except (OutOfTime, Interrupted) as stopped:
        said, interrupted = str(stopped), isinstance(stopped, Interrupted)
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
    with _locked(search.folder):
        best = _best(study)
        for other in (search.folder / "trials").iterdir():
            is_mine = other.name == str(trial.number)
            done = is_mine or _is_finished(study, int(other.name))
            if done and (best is None or other.name != str(best.number)):
                shutil.rmtree(other / "run", ignore_errors=True)
                if not is_mine:
                    shutil.rmtree(other, ignore_errors=True)
        if best is not None and best.number == trial.number:
            _write_recipe(search, best)
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
    optuna = _optuna()
    steps = search.config(params).training.steps
    every = math.ceil(steps / RUNGS)
    loop: dict[str, Any] = {"validate_every": every, "checkpoint_seconds": 3600.0, "patience": 0}
    if "sample_length" in search.automatic["training"]:
        loop["sample_length"] = 0
    loop["report_every"] = min(20, every)
    config = search.config(params, loop)
    best, last, begun = math.inf, 0, time.monotonic()
    slowest = SLOWEST * _first_seconds(study)
    for report in train(config, place, device=search.device):
        now = time.monotonic()
        if report.kind == "valid":
            value = _criterion(report)
            if value < best:
                best = value
                trial.set_user_attr("figures", _figures(report))
            if (rung := RUNGS * report.step // steps) > last:
                trial.report(best, last := rung)
            if trial.number and report.step < steps and trial.should_prune():
                share = report.step / steps
                raise optuna.TrialPruned(f"pruned at {share:.0%}, {_figure(trial.user_attrs)}")
        if report.kind == "stopped":
            raise Interrupted("interrupted")
        if report.kind in ("step", "valid") and report.step < steps:
            if now > deadline:
                raise OutOfTime("out of time")
            if now - begun > slowest:
                raise optuna.TrialPruned(f"pruned: more than {SLOWEST:g} times as slow as trial 0")
    return best


def write_results(search: Search, study: optuna.Study | None = None) -> dict[str, Any]:
    """Write the recipe and the plot; return the summary."""
    study = study or search.study()
    states = _optuna().trial.TrialState
    found = study.get_trials(deepcopy=False)
    done = [trial for trial in found if trial.state == states.COMPLETE]
    summary: dict[str, Any] = {
        "out": str(search.folder),
        "trials": len(done),
        "pruned": sum(trial.state == states.PRUNED for trial in found),
        "failed": sum(trial.user_attrs.get("outcome", "").startswith("failed") for trial in found),
        "steps": search.steps,
    }
    best = _best(study)
    if best is None:
        return summary
    first = next((trial for trial in done if _is_first(search, trial)), None)
    tried = _tried(search, found)
    shares = importance(search.space, tried)
    with _locked(search.folder):
        _write_recipe(search, best)
        write_text(search.folder / PLOT_FILE, plot(search.space, tried, shares))
    summary |= {
        "best": best.number,
        "best_values": search.values(best.params),
        "best_figures": best.user_attrs.get("figures", {}),
        "best_seconds": best.user_attrs.get("seconds"),
        "importance": shares,
        "recipe": str(search.folder / RECIPE_FILE),
        "plot": str(search.folder / PLOT_FILE),
    }
    if first is not None:
        summary["automatic_figures"] = first.user_attrs.get("figures", {})
        summary["automatic_seconds"] = first.user_attrs.get("seconds")
    run_folder = search.folder / "trials" / str(best.number) / "run"
    if (run_folder / CONFIG_FILE).is_file():
        summary["run"] = str(run_folder)
    return summary


def _write_recipe(search: Search, best: optuna.trial.FrozenTrial) -> None:
    config = search.config(best.params)
    data = replace(config.data, train=(), valid=(), test=())
    lines = toml_lines(replace(config, data=data, recipe="automatic"))
    told = f"found by elman search {search.task}: trial {best.number}"
    head = f"# {told}, {_figure(best.user_attrs)}\n"
    write_text(search.folder / RECIPE_FILE, head + "\n".join(lines) + "\n")


def _tried(search: Search, trials: Sequence[optuna.trial.FrozenTrial]) -> list[Tried]:
    """The trials that tell something. A pruned one is as far from the median of the finished ones
    as it was at equal tokens, when it was stopped."""
    states = _optuna().trial.TrialState
    done = [trial for trial in trials if trial.state == states.COMPLETE]
    found = [Tried(search.values(trial.params), float(trial.value or 0), True) for trial in done]
    middle = median(tried.result for tried in found)
    for trial in trials:
        rung = max(trial.intermediate_values, default=0)
        then = [t.intermediate_values[rung] for t in done if rung in t.intermediate_values]
        if trial.state == states.PRUNED and then:
            result = middle + trial.intermediate_values[rung] - median(then)
            found.append(Tried(search.values(trial.params), result, False))
    return found


def _measured_steps(
    folder: Path, task: str, automatic: Mapping[str, Any], seconds: float, device: str
) -> int:
    """The updates that the automatic choice makes in this time, without its start."""
    length = {"steps": SPEED_STEPS, "report_every": 10, "validate_every": SPEED_STEPS}
    config, _ = read_over(task_named(task), dict(automatic), {"training": length})
    fastest, per_step, place = 0.0, 1.0, folder / "speed"
    try:
        for report in train(config, place, device=device):
            if report.step:
                per_step = report.tokens / report.step
            fastest = max(fastest, report.tokens_per_second or 0.0)
            if report.kind == "stopped":
                raise KeyboardInterrupt
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return max(LEAST_STEPS, round(seconds * fastest / per_step))


def _retry_killed(search: Search, study: optuna.Study) -> None:
    """Enqueue the trials again whose processes have died; they hold no lock."""
    states = _optuna().trial.TrialState
    for trial in study.get_trials(deepcopy=False, states=(states.RUNNING,)):
        place = search.folder / "trials" / str(trial.number)
        try:
            descriptor = lock(place) if place.is_dir() else None
        except BlockingIOError:
            continue
        if descriptor is not None:
            os.close(descriptor)
        study.tell(trial.number, state=states.FAIL)
        if len(trial.params) == len(search.space):
            study.enqueue_trial(dict(trial.params))
        shutil.rmtree(place, ignore_errors=True)


def _num_tried(study: optuna.Study) -> int:
    """Trials that were not cut short by the end of a process."""
    states = _optuna().trial.TrialState
    wanted = (states.COMPLETE, states.PRUNED, states.RUNNING)
    found = study.get_trials(deepcopy=False)
    failed = [t for t in found if t.user_attrs.get("outcome", "").startswith("failed")]
    return sum(trial.state in wanted for trial in found) + len(failed)


def _seconds(study: optuna.Study) -> list[float]:
    """The times of finished trials."""
    states = _optuna().trial.TrialState
    done = study.get_trials(deepcopy=False, states=(states.COMPLETE,))
    return [float(t.user_attrs["seconds"]) for t in done if "seconds" in t.user_attrs]


def _first_seconds(study: optuna.Study) -> float:
    """The time of the first trial that finished, usually the automatic choice."""
    seconds = _seconds(study)
    return seconds[0] if seconds else math.inf


def _best(study: optuna.Study) -> optuna.trial.FrozenTrial | None:
    states = _optuna().trial.TrialState
    done = study.get_trials(deepcopy=False, states=(states.COMPLETE,))
    return min(done, key=lambda trial: trial.value or 0.0, default=None)


def _is_first(search: Search, trial: optuna.trial.FrozenTrial) -> bool:
    return all(trial.params.get(one.name) == one.start for one in search.space)


def _is_finished(study: optuna.Study, number: int) -> bool:
    found = study.get_trials(deepcopy=False)
    return number < len(found) and found[number].state.is_finished()


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


def _figure(attributes: Mapping[str, Any]) -> str:
    """The first figure of a trial, in words."""
    for name, value in attributes.get("figures", {}).items():
        return f"{name.replace('valid_', 'validation ').replace('_', ' ')} {value:.4g}"
    return "not validated"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Wait for the lock of the study, and hold it."""
    while True:
        try:
            descriptor = lock(folder)
            break
        except BlockingIOError:
            time.sleep(WAIT)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as missing:
        raise ElmanError("searching needs Optuna", "pip install 'elman[search]'") from missing
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
