"""`elman bench sentences --updates`: both sides make the same updates of the same batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from elman.bench import updates as bench

TABLE = "text\tlabel\n" + "".join(
    f"{'good ' * (number % 3 + 1)}word{number}\t{number % 2}\n" for number in range(40)
)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "NUM_UPDATES", 3)
    monkeypatch.setattr(bench, "TEXTS", 60)


def test_rows_of_a_table(tmp_path: Path) -> None:
    table = tmp_path / "some.tsv"
    table.write_text(TABLE)
    rows = list(bench.measure(table, 2))
    assert [row.name for row in rows] == [
        f"classifier update on some.tsv, {way}"
        for way in ("least times", "median", "processor time")
    ]
    least, median, _ = rows
    assert least.ours >= median.ours
    for row in rows:
        settings = row.settings
        assert settings["loss"] == pytest.approx(settings["peer_loss"], rel=1e-4)
        rate = settings["tokens"] / settings["updates"] * settings["updates_per_second"]
        assert row.ours == pytest.approx(rate)
        assert settings["updates"] == 3


def test_made_texts() -> None:
    rows = list(bench.measure(None, 1))
    assert len(rows) == 3
    assert "made texts" in rows[0].name
    assert rows[0].settings["loss"] == pytest.approx(rows[0].settings["peer_loss"], rel=1e-4)


def test_a_side_counts_each_batch_with_its_least_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class Numbers:
        epoch, tokens_per_epoch = 0, 1

        def __init__(self) -> None:
            self.number = 0

        def __next__(self) -> int:
            self.number += 1
            return self.number

        def state_dict(self) -> dict[str, int]:
            return {"number": self.number}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.number = state["number"]

    clock = iter([0, 5, 5, 6, 6, 9, *(10, 12, 12, 20, 20, 21)])  # rounds of 5, 1, 3 and 2, 8, 1
    monkeypatch.setattr(bench.time, "perf_counter", lambda: next(clock))
    seen: list[int] = []
    side = bench.Side(lambda batch: seen.append(batch), Numbers())  # type: ignore[arg-type, return-value, func-returns-value]
    side.run()
    side.run()
    assert seen == [1, 2, 3, 1, 2, 3]
    assert side.costs()["least times"] == 2 + 1 + 1
    assert side.costs()["median"] == (9 + 11) / 2
