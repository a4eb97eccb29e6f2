"""`elman bench lifts`: both arms trained, compared, kept and drawn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Elman = Callable[..., Any]
REVIEWS = "a fine film\tgood\na dull film\tbad\nfine !\tgood\n" * 20


def test_the_table_of_lifts(words: Path, tmp_path: Path, elman: Elman) -> None:
    pytest.importorskip("matplotlib")
    data = tmp_path / "reviews.tsv"
    data.write_text(REVIEWS)
    command = (
        *("bench", "lifts", "--embeddings", words, "--classifier", f"reviews={data}"),
        *("--seeds", 1, "--jobs", 2, "--steps", 12, "--device", "cpu", "--out", tmp_path / "runs"),
        *("--set", "model.hidden_size=8", "--set", "model.embeddings.enters=both"),
    )
    result = elman(*command)
    assert result.code == 0, result.err
    assert "reviews without, seed 1: accuracy" in result.err
    header, row, *weights = result.out.splitlines()
    assert header.split() == ["task", "test", "without", "with", "lift", "updates"]
    assert row.startswith("reviews")
    assert row.split()[-1] == "12"  # of both arms: they are compared after as many updates
    assert [line.split()[:2] for line in weights[2:]] == [
        ["reviews", "input"],
        ["reviews", "output"],
    ]
    # Finished runs are not made again.
    kept = ("bench", "lifts", "--out", tmp_path / "runs")
    again = elman(*kept, "--json", "--plot", tmp_path / "weights.svg")
    assert elman(*command).out == result.out
    assert "seed 1" not in again.err
    found = again.json
    assert found["unit"] == "accuracy"
    assert found["lift"] == pytest.approx(found["ours"] - found["peer"])
    assert sum(found["layer_weights"]["input"][0]) == pytest.approx(1)
    assert "<svg" in (tmp_path / "weights.svg").read_text()
    assert "another comparison" in elman(*command, "--set", "model.hidden_size=9").error[0]
    trained = tmp_path / "runs" / "reviews" / "with-1"
    picture = tmp_path / "one.svg"
    about = elman("info", trained, "--json", "--plot", picture).json
    assert about["layer_weights"]["output"]["weights"] == found["layer_weights"]["output"][0]
    assert picture.exists()
    assert "layers of the embeddings" in elman("info", trained).out
    assert "at the output |" in (trained / "card.md").read_text()
    plain = tmp_path / "runs" / "reviews" / "without-1"
    assert "no mix of layers" in elman("info", plain, "--plot", picture).error[0]


def test_what_cannot_be_compared_is_a_sentence(words: Path, tmp_path: Path, elman: Elman) -> None:
    data = tmp_path / "reviews.tsv"
    data.write_text(REVIEWS)
    command = ("bench", "lifts", "--embeddings", words)
    assert "no task" in elman(*command).error[0]
    assert "which embeddings" in elman("bench", "lifts", "--out", tmp_path).error[0]
    (tmp_path / "lifts.json").write_text("{}")
    assert "damaged" in elman("bench", "lifts", "--out", tmp_path).error[0]
    assert "its own settings" in elman("bench", "lifts", "--out", tmp_path, "--steps", 1).error[0]
    task = ("--classifier", f"a={data}")
    assert "same name" in elman(*command, *task, *task).error[0]
    assert "given twice" in elman(*command, *task, "--steps", 1, "--epochs", 1).error[0]
    finished = tmp_path / "runs" / "a" / "without-1"
    finished.mkdir(parents=True)
    (finished / "metrics.jsonl").write_text('{"summary": {}}\n')
    command = ("bench", "lifts", "--embeddings", tmp_path / "no", "--out", tmp_path / "runs")
    missing = elman(*command, *task, "--steps", 1)
    assert "a with embeddings, seed 1: there are no embeddings at" in missing.error[0]
