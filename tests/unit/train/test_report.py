from __future__ import annotations

import json
from pathlib import Path

import pytest

from elman.base.documents import read_json_lines
from elman.base.errors import ElmanError
from elman.train.report import MetricsLog, Report, TensorBoardLog


def test_a_report_writes_what_it_has() -> None:
    report = Report(kind="step", step=3, loss=1 / 3, seconds=1.23456, best=False)
    assert report.to_dict() == {
        "kind": "step",
        "step": 3,
        "epoch": 0,
        "tokens": 0,
        "loss": 1 / 3,
        "best": False,
        "seconds": 1.235,
    }


def test_lines_can_be_followed_while_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    for step in range(3):
        log.write(Report(kind="step", step=step, note="grüße"))
        lines = path.read_text(encoding="utf-8").splitlines()
        assert [json.loads(line)["step"] for line in lines] == list(range(step + 1))
    assert log.sync() == path.stat().st_size
    log.close()


def test_a_log_is_cut_back_to_where_a_checkpoint_was(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    log.write(Report(kind="step", step=1))
    position = log.sync()
    log.write(Report(kind="step", step=2))
    log.close()
    with path.open("a") as file:
        file.write('{"kind": "st')  # what a kill can leave
    log = MetricsLog(path, keep_bytes=position)
    assert log.sync() == position
    log.write(Report(kind="step", step=2, note="again"))
    log.close()
    assert [json.loads(line).get("note") for line in path.read_text().splitlines()] == [
        None,
        "again",
    ]


def test_a_resumed_log_keeps_unchanged_lines_only(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    for step in range(3):
        log.write(Report(kind="step", step=step, loss=1.5))
    position = log.sync()
    log.close()
    assert [report["step"] for report in read_json_lines(path)] == [0, 1, 2]
    whole = path.read_bytes()
    for damage, words in (
        (whole.replace(b"1.5", b"1.4", 1), r"was changed after it was written \(line 1\)"),
        (whole.replace(b"\n", b"\x0b", 1), "is damaged: line 1: "),
        (whole[:-1], "does not have the lines up to the train state"),
        (whole[: whole.rindex(b"\n", 0, -1) + 1], "does not have the lines"),
    ):
        path.write_bytes(damage)
        with pytest.raises(ElmanError, match=words):
            MetricsLog(path, keep_bytes=position)
        assert path.read_bytes() == damage


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_can_read_its_log(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = TensorBoardLog(tmp_path)
    log.write(Report(kind="step", step=5, loss=1.5, learning_rate=0.25))
    log.write(Report(kind="valid", step=6, valid_loss=1.25, sample="text"))
    log.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(5, 1.5)]
    assert [(e.step, e.value) for e in events.Scalars("valid_loss")] == [(6, 1.25)]
