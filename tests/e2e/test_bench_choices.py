"""`elman bench automatic`: a small table, with updates in place of minutes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elman.base.documents import read_json_lines
from elman.bench import by_speed
from elman.bench.automatic import Cell, Plan
from elman.recipes.speed import Speed

Elman = Callable[..., Any]
command_of = Plan.command


def two_updates(self: Plan, cell: Cell, *arguments: Any) -> list[str]:
    command = command_of(self, cell._replace(minutes=0), *arguments)
    return [*command, "--set", "model.hidden_size=16", "--set", "model.embedding_size=16"]


def test_the_table_of_choices(
    toy: Path, tmp_path: Path, elman: Elman, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Plan, "command", two_updates)
    out = tmp_path / "out"
    command = (
        *("bench", "automatic", f"toy={toy}", "--units", "char", "--minutes", "1"),
        *("--alternatives", 1, "--threads", 1, "--device", "cpu", "--out", out),
    )
    result = elman(*command)
    assert result.code == 0, result.err
    assert "toy, characters, 1 min: automatic" in result.err
    header, row = result.out.splitlines()
    assert header.split() == ["what", "ours", "peer", "ratio", "unit"]
    assert row.startswith("toy, characters, 1 min")
    runs = read_json_lines(out / "runs.jsonl")
    assert [run["choice"] for run in runs] == ["gru 1x256, adam 0.005, 16x64", "automatic"]
    assert all(run["steps"] == 2 and run["perplexity"] > 1 for run in runs)
    assert runs[0]["settings"]["model"]["cell"] == "gru"
    assert "| toy | char | 1 |" in (out / "table.md").read_text()
    again = elman(*command, "--json")
    assert "0 runs to make" in again.err
    assert again.json["settings"]["alternatives"] == 1
    assert "there is no unit" in elman("bench", "automatic", str(toy), "--units", "x").error[0]


def test_choices_by_speed(
    toy: Path, tmp_path: Path, elman: Elman, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Speeds come first; each run then makes its updates with the settings that were timed."""
    speed = Speed(0.2, 1.0, 1000.0)
    monkeypatch.setattr(by_speed, "training_speed", lambda *given, **how: speed)
    out = tmp_path / "out"
    command = (
        *("bench", "automatic", f"toy={toy}", "--units", "char", "--minutes", "0.05"),
        *("--alternatives", 0, "--by-speed", "--threads", 1, "--device", "cpu", "--out", out),
    )
    result = elman(*command, "--within", 0)
    assert result.code == 0, result.err
    assert not (out / "runs.jsonl").exists()
    (timed,) = read_json_lines(out / "speeds.jsonl")
    result = elman(*command)
    assert result.code == 0, result.err
    (run,) = read_json_lines(out / "runs.jsonl")
    assert (run["steps"], run["updates_per_second"], run["by_speed"]) == (3, 1.0, True)
    assert run["settings"]["model"]["hidden_size"] == timed["config"]["model"]["hidden_size"]
