"""`elman bench automatic`: what is run, in which order, what is kept, and the table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from elman.base.config import parse_overrides
from elman.base.errors import ElmanError, UsageError
from elman.bench import automatic as bench
from elman.bench.alternatives import ALTERNATIVES
from elman.bench.automatic import AUTOMATIC, BenchText, Cell, Plan
from elman.recipes.resolve import resolve

SETTINGS = {
    "model": {
        "cell": "lstm",
        "num_layers": 1,
        "hidden_size": 256,
        "dropout_output": 0.2,
        "head": {"kind": "sampled", "num_samples": 1024},
    },
    "optimiser": {"kind": "adam", "learning_rate": 0.003},
    "training": {"batch_size": 20, "chunk_length": 35},
}


@pytest.fixture
def plan() -> Plan:
    texts = (BenchText("one", "one.txt", "v.txt"), BenchText("two", "two.txt", "v.txt"))
    return Plan(texts, ("char", "word"), (5.0, 1.0), num_alternatives=2)


def figures(perplexity: float) -> dict[str, Any]:
    return {
        "perplexity": perplexity,
        "steps": 1200,
        "tokens": 840_000,
        "tokens_per_second": 15_000.0,
        "settings": SETTINGS,
    }


def test_each_list_has_ten_alternatives_with_names_of_their_own() -> None:
    for listed in ALTERNATIVES.values():
        assert len({alternative.name for alternative in listed}) == 10


@pytest.mark.parametrize("unit", ["char", "word"])
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_alternatives_are_settings_that_the_task_reads(
    unit: str, device: str, tmp_path: Path
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("One or two of them, they say.\n" * 300)
    for alternative in ALTERNATIVES[unit, device]:
        arguments = alternative.arguments(unit)
        if alternative.recipe:
            assert arguments == ["--recipe", alternative.recipe]
            continue
        settings = parse_overrides([f"tokenizer.kind={unit}", *arguments[1::2]])
        config = resolve("lm", [str(text)], settings=settings, minutes=1, device="cpu").config
        assert config.model.hidden_size == alternative.hidden_size
        assert config.model.tied == (unit == "word")
        assert config.training.chunk_length == alternative.chunk_length
        assert config.optimiser.learning_rate == alternative.learning_rate


def test_quick_runs_come_first_and_automatic_choices_second(plan: Plan) -> None:
    runs = plan.runs()
    assert len(runs) == len(set(runs)) == 2 * 2 * 2 * 3
    assert [cell.minutes for cell, _ in runs] == [1.0] * 12 + [5.0] * 12
    assert [name for _, name in runs[4:8]] == [AUTOMATIC] * 4
    assert AUTOMATIC not in [name for _, name in (*runs[:4], *runs[8:12])]
    assert [name for _, name in Plan(plan.texts, ("char",), (1.0,), only=(AUTOMATIC,)).runs()] == [
        *(AUTOMATIC, AUTOMATIC)
    ]


def test_a_run_is_a_command_of_elman(plan: Plan, tmp_path: Path) -> None:
    text = tmp_path / "one.txt"
    text.write_text("a , b . c <unk> .\n" * 40)
    given = BenchText("one", str(text), "v.txt")
    command = plan.command(Cell("one", "word", 1.0), AUTOMATIC, given, tmp_path / "out")
    assert command[:7] == ["train", "lm", str(text), "--valid", "v.txt", "--minutes", "1"]
    assert "tokenizer.kind=pretokenized" in command
    name = ALTERNATIVES["word", "cpu"][0].name
    other = plan.command(Cell("one", "word", 1.0), name, given, tmp_path / "out")
    assert [word for word in command if word not in other] == []
    assert "model.hidden_size=256" in other
    characters = plan.command(Cell("one", "char", 1.0), AUTOMATIC, given, tmp_path / "out")
    assert "tokenizer.kind=char" in characters


def test_a_bench_that_was_stopped_continues(plan: Plan, tmp_path: Path) -> None:
    made: list[tuple[Cell, str]] = []

    def run(cell: Cell, name: str, cores: Sequence[int]) -> dict[str, Any]:
        if len(made) == 5:
            raise KeyboardInterrupt
        made.append((cell, name))
        return figures(100.0 + len(made))

    with pytest.raises(KeyboardInterrupt):
        bench.measure(plan, tmp_path, threads=1, run=run)
    assert len((tmp_path / bench.RUNS_FILE).read_text().splitlines()) == 5
    before, made[:] = list(made), []
    plan = Plan(plan.texts, plan.units, (1.0,), 1)  # a part of the same runs

    rows = bench.measure(plan, tmp_path, threads=1, run=run)
    assert len(rows) == 8
    assert made == plan.runs()[5:]
    assert not set(made) & set(before)
    made.clear()
    assert bench.measure(plan, tmp_path, threads=1, run=run) == rows
    assert made == []
    renewed = bench.measure(plan, tmp_path, threads=1, run=run, renew=True)
    assert [name for _, name in made] == [AUTOMATIC] * 4
    assert [row["perplexity"] for row in renewed[:4]] == [101.0, 102.0, 103.0, 104.0]
    assert len(renewed) == 8


def test_a_run_that_fails_leaves_a_gap(plan: Plan, tmp_path: Path) -> None:
    def run(cell: Cell, name: str, cores: Sequence[int]) -> dict[str, Any]:
        assert len(cores) <= 1
        if cell.unit == "char":
            raise ElmanError("out of memory", "use less")
        return figures(100.0)

    rows = bench.measure(plan, tmp_path, threads=1, run=run)
    assert {row["unit"] for row in rows} == {"word"}
    assert len(rows) == 12


def test_no_run_starts_that_would_end_too_late(plan: Plan, tmp_path: Path) -> None:
    rows = bench.measure(
        plan, tmp_path, threads=1, within=2.0, run=lambda cell, name, cores: figures(100.0)
    )
    assert {row["minutes"] for row in rows} == {1.0}


def test_the_table_says_how_far_the_automatic_choice_is_behind(tmp_path: Path) -> None:
    def row(choice: str, perplexity: float, text: str = "one") -> dict[str, Any]:
        cell = {"text": text, "unit": "word", "minutes": 1.0}
        return {**cell, "choice": choice, **figures(perplexity)}

    rows = [row(AUTOMATIC, 102.0), row("a", 100.0), row("b", 110.0), row("a", 90.0, "two")]
    (found,) = bench.compared(rows)
    assert found.name == "one, words, 1 min"
    assert found.ours == 102.0
    assert found.peer == 100.0
    assert found.ratio == pytest.approx(100 / 102)
    assert found.settings["behind"] == pytest.approx(0.02)
    assert found.settings["beside"] == "a"
    text = bench.markdown(rows)
    told = "lstm 1x256, 1024 samples, dropout 0.2, adam 0.003, 20x35"
    assert f"| one | word | 1 | {told} | 102.000 | a | 100.000 | +2.0% |" in text
    assert "## two, words, 1 min" in text
    ordered = [line.split(" |")[0] for line in text.splitlines() if "15,000" in line]
    assert ordered == ["| a", f"| automatic: {told}", "| b", "| a"]
    (alone,) = bench.compared([row(AUTOMATIC, 102.0)])
    assert alone.peer is None
    json.dumps(alone.settings)


def test_texts_are_read_off_the_command_line(tmp_path: Path) -> None:
    text = tmp_path / "my.txt"
    text.write_text("".join(f"line {number}\n" for number in range(100)))
    assert BenchText.of(str(text)) == BenchText("my", str(text))
    assert BenchText.of(f"mine={text},{text}") == BenchText("mine", str(text), str(text))
    cut = BenchText.of(str(text)).prepared(tmp_path / "out")
    parts = [Path(str(path)).read_text() for path in (cut.train, cut.valid)]
    assert "".join(parts) == text.read_text()
    assert len(parts[1]) == 80  # at least a tenth of 790
    for wrong in ("mine=", f"={text}", f"mine={text},", "mine=nowhere.txt"):
        with pytest.raises(UsageError):
            BenchText.of(wrong)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("char", "1,two"), "are not minutes"),
        (("char", "0"), "are not minutes"),
        (("char,sentence", "1"), "there is no unit 'sentence'"),
    ],
)
def test_wrong_plans_are_a_sentence(
    arguments: tuple[str, str], message: str, tmp_path: Path
) -> None:
    text = tmp_path / "my.txt"
    text.write_text("some text\n")
    with pytest.raises(UsageError, match=message):
        bench.make_plan([str(text)], *arguments, 10, (), "cpu", 1)
    with pytest.raises(UsageError, match="the same name"):
        bench.make_plan([str(text), str(text)], "char", "1", 10, (), "cpu", 1)
    with pytest.raises(UsageError, match="there is no choice 'mine'"):
        bench.make_plan([str(text)], "char", "1", 10, ("mine",), "cpu", 1)


def test_more_jobs_than_cores_are_refused(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cores") as caught:
        bench.measure(plan, tmp_path, jobs=5000, run=lambda cell, name, cores: figures(1.0))
    assert "--jobs" in caught.value.hint
