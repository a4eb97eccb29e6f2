"""Projections from measured rates, sizes of folders, and the command itself on a small text."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from elman.bench import counting, indexing
from elman.bench.counting import Rates

RATES = Rates(
    text_bytes=4 * 10**6, tokens=10**6, order=5, ngrams=2 * 10**6, read=1.0, count=2.0, merge=3.0,
    estimate=4.0, run_bytes=5 * 10**6, disk=10**8, memory=10**9,
)  # fmt: skip


def test_a_terabyte_by_proportion(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row.name: row for row in counting.project(RATES, 4e12, workers=10, bandwidth=1e9)}
    assert rows["tokens"].ours == pytest.approx(1000)
    assert rows["read the text, one job"].ours == pytest.approx(1e6 / 3600)
    assert rows["count, 10 workers"].ours == pytest.approx(2e5 / 3600)
    assert rows["merge, 10 workers"].ours == pytest.approx(3e5 / 3600)
    assert rows["disk at most"].ours == pytest.approx(100)
    # Each run is written and read, the merged counts written and read, the text's ids read.
    traffic = 1e6 * (2 * 5e6 + 2 * 12 * 2e6 + 4 * 1e6)
    assert rows["network"].ours == pytest.approx(traffic / 1e12)
    assert rows["network, 1 GB/s to each"].ours == pytest.approx(traffic / 1e10 / 3600)
    assert "at most 2,147,483,647 n-grams" in capsys.readouterr().err
    list(counting.project(RATES, 4e7, workers=10, bandwidth=1e9))
    assert "at most" not in capsys.readouterr().err


def test_the_size_of_folders(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 10_000)
    one = counting._size([tmp_path])
    assert 10_000 <= one <= 1 << 16
    os.link(tmp_path / "a", tmp_path / "b")
    assert counting._size([tmp_path]) == one
    with counting._watched([tmp_path]) as largest:
        (tmp_path / "c").write_bytes(b"x" * 100_000)
    assert largest[0] >= one + 100_000


def test_stretches_of_a_text(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("one two three\nfour\nfive six\n" * 9)
    found = list(indexing._stretches(text, 2, 20))
    assert all(len(words) == 2 for words in found)
    assert {tuple(words) for words in found[::2]} <= {
        ("one", "two"), ("two", "three"), ("five", "six")
    }  # fmt: skip


def test_the_curve_runs_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def program(command: list[str], *, stdout: Path) -> counting.Cost:
        seen.append((command, os.environ["TMPDIR"]))
        summary = {"tokens": 7, "ngrams": [1, 2], "disk_estimate": 5}
        stdout.write_text(json.dumps(summary))
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "ngram.safetensors").write_bytes(b"x" * 5_000)
        return counting.Cost(2.0, 3.0, 4)

    monkeypatch.setattr(counting, "run_program", program)
    (row,) = counting.curve(["text"], tmp_path, [7], 3, "1G")
    command, temporary = seen[0]
    assert command[1:5] == ["-m", "elman.cli", "train", "ngram"]
    assert temporary == str(tmp_path / "temporary")
    assert row.ours == 2.0
    assert row.settings["peak_disk"] >= 5_000
    assert row.settings["model_bytes"] == 5_000


def test_workers_without_dask_are_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(counting, "find_spec", lambda name: None)
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat\n" * 20)
    (row,) = counting.scaling([str(text)], tmp_path / "work", 140, 3, [2])
    assert "Dask is not installed" in capsys.readouterr().err
    assert row.settings["through"] == "plain processes"
    stages = row.settings["stages"]
    assert list(stages) == ["plan", "count", "merge", "estimate", "join"]
    assert row.ours == sum(stages.values()) - stages["plan"]
    assert row.settings["whole_program"] == sum(stages.values())
    assert row.settings["tokens"] == 140
    assert (tmp_path / "work" / "run" / "ngram.safetensors").stat().st_size > 0


def test_a_text_is_cut_into_parts_at_line_ends(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(f"line {number}\n" for number in range(100)), encoding="utf-8")
    parts = [Path(part).read_text(encoding="utf-8") for part in indexing._split(text, tmp_path, 3)]
    assert "".join(parts) == text.read_text(encoding="utf-8")
    assert all(part.endswith("\n") and part.startswith("line ") for part in parts)
