"""Send the reports of a run to a tracker: Weights & Biases, MLflow or TensorBoard.

Trackers are fed by metrics.jsonl, so a run can be sent while it trains (`--track`) and afterwards
(`elman track`). `track.json` in the run folder has the trackers' own ids of the run, with which a
resumed run goes on where it was.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from elman.base.config import flat
from elman.base.documents import parse_line, read_json, write_json
from elman.base.errors import ElmanError, UsageError
from elman.base.tables import Table, look_up
from elman.runs.run_folder import CONFIG_FILE, METRICS_FILE, check_run_folder, require
from elman.train.report import TensorBoardLog, figures

TRACK_FILE = "track.json"
PROJECT = "elman"
"""The project, or experiment, that runs are sent to."""

TRACKERS: Table = {
    "wandb": f"{__name__}:WandB",
    "mlflow": f"{__name__}:MLflow",
    "tensorboard": f"{__name__}:TensorBoard",
}


class Tracker(Protocol):
    id: str
    """What the tracker calls the run."""
    where: str
    """Where to look at it, in a phrase."""

    def write(self, values: Mapping[str, Any]) -> None:
        """Send a report, a line of metrics.jsonl."""

    def close(self) -> None: ...


class WandB:
    """Weights & Biases, offline unless the environment variable WANDB_MODE says otherwise."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], id: str | None) -> None:
        wandb = _imported("wandb")
        os.environ.setdefault("WANDB_SILENT", "true")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=folder.name,
            id=id,
            resume="allow",
            config=dict(settings),
            dir=str(folder),
            mode=os.environ.get("WANDB_MODE", "offline"),
        )
        # Steps are given: a resumed run repeats some, which wandb's own counter refuses.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        self.id = str(self._run.id)
        self.where = f"wandb sync {Path(self._run.dir).parent}"

    def write(self, values: Mapping[str, Any]) -> None:
        if found := figures(values):
            self._run.log({"step": values["step"], **found})
        for name, value in figures(values.get("summary") or {}, every=True).items():
            self._run.summary[name] = value

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """MLflow, at MLFLOW_TRACKING_URI or its own default."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], id: str | None) -> None:
        tracking = _imported("mlflow.tracking", "mlflow")
        self._client = tracking.MlflowClient()
        if id is None:
            experiment = self._client.get_experiment_by_name(PROJECT)
            number = (
                self._client.create_experiment(PROJECT)
                if experiment is None
                else experiment.experiment_id
            )
            id = self._client.create_run(number, run_name=folder.name).info.run_id
            for name, value in flat(settings).items():
                self._client.log_param(id, name, value)
        self.id = str(id)
        self.where = f"run {id} of experiment {PROJECT} at {tracking.get_tracking_uri()}"

    def write(self, values: Mapping[str, Any]) -> None:
        for name, value in figures(values).items():
            self._client.log_metric(self.id, name, value, step=values["step"])
        for name, value in figures(values.get("summary") or {}, every=True).items():
            self._client.log_metric(self.id, f"summary.{name}", value, step=values["step"])

    def close(self) -> None:
        self._client.set_terminated(self.id)


class TensorBoard:
    """The folder tensorboard/ of the run."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], id: str | None) -> None:
        place = folder / "tensorboard"
        self._log = TensorBoardLog(place)
        self.id = place.name
        self.where = f"tensorboard --logdir {place}"

    def write(self, values: Mapping[str, Any]) -> None:
        self._log.write_values(values)

    def close(self) -> None:
        self._log.close()


def track(folder: Path, name: str) -> tuple[str, int]:
    """Send a whole run to a tracker; return where to look at it, and the number of reports."""
    look_up(TRACKERS, name, "tracker")
    check_run_folder(folder)
    require(folder, METRICS_FILE)
    if (id := _ids(folder).get(name)) is not None:
        raise UsageError(
            f"{folder} is in {name} already, as {id}",
            f"remove {folder / TRACK_FILE} to send it once more",
        )
    with following(folder, [name]) as follow:
        number = follow()
        return follow.places()[0], number


class Follower:
    """Sends the lines of metrics.jsonl that were added since the last call."""

    def __init__(self, folder: Path, names: Collection[str], *, skip: bool) -> None:
        self._folder, self._names = folder, list(dict.fromkeys(names))
        self._file = folder / METRICS_FILE
        self._trackers: list[Tracker] = []
        self._number = 0
        self._place = self._file.stat().st_size if skip and self._file.exists() else 0

    def __call__(self) -> int:
        """Send what is new; return the number of reports so far."""
        if not self._names or not self._file.exists():
            return self._number
        self._open()
        # A resumed run cuts the file to its last train state.
        self._place = min(self._place, self._file.stat().st_size)
        with self._file.open("rb") as file:
            file.seek(self._place)
            lines = file.read()
        for line in lines[: lines.rfind(b"\n") + 1].splitlines():
            self._number += 1
            values = parse_line(line, self._file, self._number)
            for tracker in self._trackers:
                tracker.write(values)
        self._place += lines.rfind(b"\n") + 1
        return self._number

    def places(self) -> list[str]:
        return [tracker.where for tracker in self._trackers]

    def close(self) -> None:
        for tracker in self._trackers:
            tracker.close()

    def _open(self) -> None:
        if self._trackers:
            return
        config = self._folder / CONFIG_FILE
        settings = read_json(config) if config.is_file() else {}
        ids = _ids(self._folder)
        for name in self._names:
            make = look_up(TRACKERS, name, "tracker")
            tracker = make(self._folder, settings, ids.get(name))
            self._trackers.append(tracker)
            ids[name] = tracker.id
        write_json(self._folder / TRACK_FILE, ids)


@contextmanager
def following(folder: Path, names: Sequence[str], *, skip: bool = False) -> Iterator[Follower]:
    """Yield a function that sends new reports; with `skip`, those of a resumed run alone."""
    check_trackers(names)
    follower = Follower(folder, names, skip=skip)
    try:
        yield follower
    finally:
        follower.close()


def check_trackers(names: Sequence[str]) -> None:
    """Refuse an unknown tracker, and one that is not installed, before anything is trained."""
    modules = {"wandb": "wandb", "mlflow": "mlflow.tracking", "tensorboard": "tensorboard"}
    for name in names:
        look_up(TRACKERS, name, "tracker")
        _imported(modules[name], name)


def _imported(module: str, package: str | None = None) -> Any:
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError as error:
        raise ElmanError(
            f"the tracker {package or module} is not installed", "pip install 'elman[track]'"
        ) from error


def _ids(folder: Path) -> dict[str, str]:
    path = folder / TRACK_FILE
    found = read_json(path) if path.is_file() else {}
    return dict(found) if isinstance(found, dict) else {}
