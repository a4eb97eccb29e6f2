"""`--by-speed`: runs as long as their speeds allow, and cells of equal weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elman.base.documents import read_json_lines
from elman.base.errors import ElmanError, UsageError
from elman.bench import automatic, by_speed, cells
from elman.bench.automatic import AUTOMATIC, BenchText, Cell, Plan
from elman.bench.cells import CellPlan, compare_cells, num_weights
from elman.recipes.speed import Speed
from elman.testing import TOY_TEXT

SMALL = ("model.hidden_size=8", "model.embedding_size=8", "training.batch_size=2")


@pytest.fixture
def toy(tmp_path: Path) -> str:
    text = tmp_path / "toy.txt"
    text.write_text(TOY_TEXT)
    return str(text)


@pytest.fixture
def timings(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replaces the measurement: half an update per second for an LSTM, one for others. Returns the
    settings that were measured."""
    seen: list[Any] = []

    def training_speed(config: Any, place: Path, device: str, **how: Any) -> Speed:
        seen.append(config)
        rate = 0.5 if config.model.cell == "lstm" else 1.0
        return Speed(rate / 3, rate, 100 * rate)

    monkeypatch.setattr(by_speed, "training_speed", training_speed)
    return seen


def test_cells_make_the_updates_that_their_speeds_allow(
    toy: str, timings: list[Any], tmp_path: Path
) -> None:
    plan = CellPlan(toy, SMALL, minutes=0.1, by_speed=True)
    found = list(compare_cells(plan, ["lstm", "mingru"], tmp_path))
    rows = read_json_lines(tmp_path / cells.CELLS_FILE)
    assert [(row["cell"], row["steps"]) for row in rows] == [("lstm", 3), ("mingru", 6)]
    assert rows[0]["tokens_per_second"] == pytest.approx(0.5 * rows[0]["tokens"] / 3)
    assert [step for step, _ in rows[0]["curve"]] == [3]
    assert [row.settings["beside"] for row in found] == ["lstm"] * 4
    assert found[2].ratio == pytest.approx(2, rel=0.1)

    assert [row.ours for row in compare_cells(plan, ["lstm"], tmp_path)] == [
        row.ours for row in found[:2]
    ]
    assert len(timings) == 2  # both are kept
    assert len(read_json_lines(tmp_path / cells.CELLS_FILE)) == 2


def test_within_no_time_only_speeds_are_measured(
    toy: str, timings: list[Any], tmp_path: Path
) -> None:
    plan = CellPlan(toy, SMALL, minutes=0.1, by_speed=True)
    assert list(compare_cells(plan, ["gru"], tmp_path, within=0)) == []
    assert [row["cell"] for row in read_json_lines(tmp_path / by_speed.SPEEDS_FILE)] == ["gru"]
    list(compare_cells(plan, ["gru"], tmp_path))
    assert len(timings) == 1


def test_cells_can_have_equally_many_weights(toy: str) -> None:
    plan = CellPlan(toy, steps=3, layer_weights=100_000)
    widths = {}
    for cell in ("lstm", "gru", "rnn", "mingru", "slstm"):
        model = plan.config(cell).model
        widths[cell] = model.hidden_size
        assert num_weights(model) == pytest.approx(100_000, rel=0.1)
    assert widths["lstm"] < widths["gru"] < widths["rnn"]
    assert all(width % 8 == 0 for width in widths.values())


def test_automatic_choices_keep_the_settings_of_their_measurement(
    toy: str, timings: list[Any], tmp_path: Path
) -> None:
    """The choice depends on how fast the machine seems: trained later, it must be the same one."""
    text = BenchText("toy", toy, toy)
    plan = Plan((text,), ("char",), (1.0,), 1, by_speed=True)
    cell = Cell("toy", "char", 1.0)
    first = plan.timed(cell, AUTOMATIC, text, tmp_path, 1)
    assert first.config.training.steps == 30
    assert first.config.training.minutes is None
    assert timings[0].training.minutes == 1.0
    again = plan.timed(cell, AUTOMATIC, text, tmp_path, 1)
    assert again == first
    other = plan.timed(cell, next(iter(plan.alternatives("char"))), text, tmp_path, 1)
    assert other.config.training.steps == 60
    assert len(timings) == 2
    assert plan.timed(cell, AUTOMATIC, text, tmp_path, 2).config.training.steps == 30
    assert len(timings) == 3  # another number of threads has another speed


def test_runs_are_timed_on_one_device_and_trained_on_another(
    toy: str, timings: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = []

    def elman(self: object, arguments: list[str], cores: object) -> dict[str, Any]:
        commands.append(arguments)
        raise ElmanError("not run here", "")

    monkeypatch.setattr(automatic._Processes, "_elman", elman)
    plan = automatic.make_plan(
        *([f"toy={toy},{toy}"], "char", "1", 0, (), "cpu", 1), by_speed=True, train_on="cuda"
    )
    automatic.measure(plan, tmp_path, jobs=100, threads=2)
    assert [one["device"] for one in read_json_lines(tmp_path / by_speed.SPEEDS_FILE)] == ["cpu"]
    (command,) = commands
    assert command[command.index("--device") + 1] == "cuda"
    assert "training.precision=float32" in command  # auto would be bf16 there
    with pytest.raises(UsageError, match="--train-on needs --by-speed"):
        automatic.make_plan([toy], "char", "1", 0, (), "cpu", 1, train_on="cuda")


def test_runs_by_speed_and_by_the_clock_are_told_apart(tmp_path: Path) -> None:
    text = BenchText("one", "one.txt", "v.txt")
    figures = {"perplexity": 3.0, "steps": 1, "tokens": 1, "tokens_per_second": 1.0}
    settings = {
        "model": {"cell": "gru", "num_layers": 1, "hidden_size": 8, "dropout_output": 0}
        | {"head": {"kind": "full"}},
        "optimiser": {"kind": "adam", "learning_rate": 0.1},
        "training": {"batch_size": 2, "chunk_length": 3},
    }
    made = []
    for is_by_speed in (False, True, True, False):
        plan = Plan((text,), ("char",), (1.0,), 0, by_speed=is_by_speed)
        automatic.measure(
            plan,
            tmp_path,
            threads=1,
            run=lambda *given: made.append(given) or {**figures, "settings": settings},  # type: ignore[func-returns-value]
        )
    assert len(made) == 2
