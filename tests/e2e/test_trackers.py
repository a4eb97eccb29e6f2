"""`--track` and `elman track`: the trackers have the figures of metrics.jsonl."""

from __future__ import annotations

import json
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

Elman = Callable[..., Any]
Figures = list[tuple[int, float]]
BLOCK = 1 << 15


def figures(reports: list[dict[str, Any]], name: str) -> Figures:
    return [(report["step"], report[name]) for report in reports if name in report]


def close(found: Figures, expected: Figures) -> bool:
    """Equal steps, and equal numbers in float32."""
    return [s for s, _ in found] == [s for s, _ in expected] and [
        v for _, v in found
    ] == pytest.approx([v for _, v in expected], rel=1e-6)


def of_tensorboard(run: Path, name: str) -> Figures:
    module = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = module.EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def of_mlflow(run: Path, name: str) -> Figures:
    from elman.base.documents import read_json

    client = pytest.importorskip("mlflow.tracking").MlflowClient()
    history = client.get_metric_history(read_json(run / "track.json")["mlflow"], name)
    return [(metric.step, metric.value) for metric in history]


def of_wandb(run: Path, name: str) -> Figures:
    """Read the file that `wandb sync` sends."""
    messages = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    (file,) = (run / "wandb").glob("offline-run-*/*.wandb")
    found: Figures = []
    # wandb's own process may still be writing the file when `finish` returns.
    end = time.monotonic() + 60
    ended = False
    while not ended and time.monotonic() < end:
        time.sleep(0.05)
        found = []
        for data in records(file.read_bytes()):
            record = messages.Record()
            record.ParseFromString(data)
            ended = ended or record.HasField("exit")
            items = {
                item.key or item.nested_key[0]: json.loads(item.value_json)
                for item in record.history.item
            }
            if name in items:
                found.append((items["step"], items[name]))
    assert ended, "wandb did not finish its file"
    return found


def records(data: bytes) -> Iterator[bytes]:
    """The records of a log in the format of LevelDB, after a header of 7 bytes."""
    place, whole = 7, b""
    while place + 7 <= len(data):
        if BLOCK - place % BLOCK < 7:  # padding
            place += BLOCK - place % BLOCK
            continue
        _, size, kind = struct.unpack("<IHB", data[place : place + 7])
        whole += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield whole
            whole = b""


READERS = {"tensorboard": of_tensorboard, "mlflow": of_mlflow, "wandb": of_wandb}


@pytest.fixture
def trackers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Those that are installed, with their places in a temporary folder."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return [name for name in READERS if find_spec(name)]


@pytest.mark.filterwarnings("ignore")
def test_a_run_that_trains_is_sent_to_all(
    elman: Elman, toy: Path, small: Any, reports: Any, tmp_path: Path, trackers: list[str]
) -> None:
    run = tmp_path / "run"
    how = ["--steps", 6, "--set", "training.report_every=2", "--set", "training.sample_length=0"]
    how += [word for tracker in trackers for word in ("--track", tracker)]
    elman("train", "lm", toy, "--out", run, *small, *how).ok()
    for name in ("loss", "valid_perplexity"):
        expected = figures(reports(run), name)
        assert expected
        for tracker in trackers:
            assert close(READERS[tracker](run, name), expected), tracker


@pytest.mark.parametrize("tracker", READERS)
@pytest.mark.filterwarnings("ignore")
def test_a_finished_run_is_sent_once(
    tracker: str,
    trackers: list[str],
    elman: Elman,
    words: Path,
    reports: Any,
    tmp_path: Path,
) -> None:
    if tracker not in trackers:
        pytest.skip(f"{tracker} is not installed")
    run = tmp_path / "run"
    shutil.copytree(words, run)
    found = elman("track", run, tracker, "--json").ok().json
    assert found["reports"] == len(reports(run))
    assert close(READERS[tracker](run, "valid_loss"), figures(reports(run), "valid_loss"))
    message, hint = elman("track", run, tracker).error
    assert "already" in message
    assert "track.json" in hint


def test_an_unknown_tracker_is_refused(
    elman: Elman, words: Path, toy: Path, tmp_path: Path
) -> None:
    message, hint = elman("track", words, "wandbb").error
    assert "wandbb" in message
    assert "wandb" in hint
    message, _ = elman("train", "lm", toy, "--out", tmp_path / "x", "--track", "clear").error
    assert "clear" in message
    assert not (tmp_path / "x").exists()
