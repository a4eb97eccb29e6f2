"""`elman bench ablations`: parts that the task reads, runs that are kept, and the table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elman.base.config import parse_overrides
from elman.bench import ablations as bench
from elman.bench.ablations import ANNEALED, AVERAGED, BASES, CONSTANT, PARTS, AblationPlan
from elman.recipes.resolve import resolve

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text("the students opened their <unk> .\n" * 40)
    return str(path)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Replaces training; returns the runs that were trained."""
    made: list[tuple[str, int]] = []

    def runs(plan: AblationPlan, name: str, seed: int, *given: Any) -> Iterator[Any]:
        made.append((name, seed))
        perplexity = 100.0 + seed if name in BASES else 90.0 + 2 * seed
        yield name, {"perplexity": perplexity, "cpu_seconds": 2.0 if name in BASES else 3.0}
        if name == ANNEALED:
            yield "tuned temperature", {"perplexity": 99.0 + seed}

    monkeypatch.setattr(bench, "_runs", runs)
    return made


def test_all_parts_are_settings_that_the_task_reads(text: str) -> None:
    def config(name: str) -> Any:
        settings = parse_overrides([*bench.SHARED, *bench.settings_of(name)])
        return resolve("lm", [text], steps=1, settings=settings).config

    for name, part in PARTS.items():
        assert bool(part.settings) != bool(part.adapting), name
        assert (config(name) != config(part.base)) == bool(part.settings), name


def test_the_reference_names_the_paper_of_each_part() -> None:
    lines = (REFERENCE / "config.md").read_text().splitlines()
    for name, part in PARTS.items():
        surname, year = part.paper.split()[0].rstrip(","), part.paper.split()[-1]
        for setting in part.settings:
            key, _, value = setting.partition("=")
            if key in ("model.head.num_components", "optimiser.average_decay"):
                continue
            if key.startswith("optimiser.average") or key == "optimiser.non_monotone_interval":
                key = "optimiser.average"
            rows = [line for line in lines if line.startswith(f"| `{key}` |")]
            if key == "model.head.kind":
                rows = [line for line in rows if f"`{value}`" in line]
            told = [line for line in rows if surname in line and year in line]
            is_together = name == "these four together"
            assert told or is_together, f"{key} does not name {part.paper}"
    commands = (REFERENCE / "cli.md").read_text()
    assert "dropout masks (Gal and Ghahramani, 2016)" in commands
    assert "temperature of networks (Melis and others, 2018)" in commands


def test_a_bench_that_was_stopped_continues(
    text: str, fake: list[tuple[str, int]], tmp_path: Path
) -> None:
    names = ("tuned temperature", "RMSprop", "fine-tuning restart")
    plan = AblationPlan((text, text, text), names, num_lines=16, num_seeds=1)
    rows = bench.measure(plan, tmp_path)
    assert fake == [(ANNEALED, 1), ("RMSprop", 1), (AVERAGED, 1), ("fine-tuning restart", 1)]
    assert bench.settings_of("fine-tuning restart")[: len(BASES[CONSTANT])] == BASES[CONSTANT]
    assert [row["name"] for row in rows] == list(names)
    lines = [
        (tmp_path / f"{part}.txt").read_text().count("\n") for part in ("train", "valid", "test")
    ]
    assert lines == [16, 2, 16]

    fake.clear()
    two = AblationPlan((text, text, text), (*names, "two-tailed average"), 16, num_seeds=2)
    rows = bench.measure(two, tmp_path)
    assert fake[:2] == [(CONSTANT, 1), ("two-tailed average", 1)]
    assert all(seed == 2 for _, seed in fake[2:])
    assert len(fake) == 2 + 6

    fake.clear()
    bench.measure(AblationPlan(plan.texts, names, 16, steps=7, num_seeds=1), tmp_path)
    assert len(fake) == 4  # another length, other runs

    fake.clear()
    other = Path(text).with_name("other.txt")
    other.write_text("a lecture .\n" * 40)
    bench.measure(AblationPlan((str(other), text, text), names, 16, num_seeds=1), tmp_path)
    assert len(fake) == 4  # another text


def test_the_table_has_changes_and_their_spread(
    text: str, fake: list[tuple[str, int]], tmp_path: Path
) -> None:
    plan = AblationPlan((text, text, text), ("RMSprop", "tuned temperature"), 16, num_seeds=2)
    part, measured = bench.measure(plan, tmp_path)
    assert part["peer"] == 101.5
    assert part["ours"] == 93.0
    changes = (92 / 101 - 1, 94 / 102 - 1)
    assert part["change"] == pytest.approx(sum(changes) / 2)
    assert part["change_deviation"] == pytest.approx(abs(changes[1] - changes[0]) / 2**0.5)
    assert part["cost"] == 1.5
    assert measured["cost"] is None
    line = (tmp_path / bench.TABLE_FILE).read_text().splitlines()[2]
    about = "| RMSprop | Melis and others, 2018 | Adam, cosine "
    assert line == f"{about}| 101.50 | 93.00 | -8.4 % ± 0.8 | x 1.50 |"
    assert bench.ablation_table([part, measured]).splitlines()[1].split()[0] == "RMSprop"


def test_one_part_is_trained_and_measured(text: str, tmp_path: Path) -> None:
    small = ("model.hidden_size=8", "model.embedding_size=8", "training.batch_size=2")
    plan = AblationPlan(
        (text, text, text), ("locked dropout", "tuned temperature"), 40, 2, 1, settings=small
    )
    locked, tuned = bench.measure(plan, tmp_path)
    assert locked["ours"] != locked["peer"] == tuned["peer"]
    assert locked["cost"] > 0
    assert list((tmp_path / "runs").iterdir()) == []
