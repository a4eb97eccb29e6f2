"""Language models that read each line by itself: training, evaluating and scoring agree."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import elman as library

Elman = Callable[..., Any]
SMALL = [
    *("--set", "model.hidden_size=16", "--set", "model.embedding_size=8", "--device", "cpu"),
    *("--set", "training.sample_length=20", "--set", "data.unit=line"),
]


@pytest.mark.parametrize("kind", ["char", "word"])
def test_training_evaluating_and_scoring_agree(
    elman: Elman, toy: Path, tmp_path: Path, kind: str
) -> None:
    out, text = str(tmp_path / "run"), tmp_path / "text.txt"
    text.write_text("".join(toy.read_text(encoding="utf-8").splitlines(keepends=True)[:40]))
    kinds = ["--set", f"tokenizer.kind={kind}", "--set", "model.tied=false"]
    done = elman(
        *("train", "lm", str(toy), "--valid", str(text), "--steps", "6", "--out", out),
        *(*SMALL, *kinds, "--json"),
    )
    assert done.code == 0, done.err
    summary = json.loads(done.out.splitlines()[-1])
    lm = library.load(out)
    assert lm.unit == "line"
    figures = lm.evaluate(str(text))
    # Validation, evaluation and scoring are three readings of the same lines.
    assert figures.perplexity == pytest.approx(summary["perplexity"], rel=1e-4)
    rows = lm.surprisal(text.read_text(encoding="utf-8"), unit="line", base="e")
    nats = math.fsum(row.surprisal for row in rows) / sum(row.num_tokens for row in rows)
    assert figures.nats_per_token == pytest.approx(nats, rel=1e-5)
    assert figures.nats_per_token != pytest.approx(
        library.load(out).evaluate(str(text), context=2).nats_per_token, rel=1e-5
    )
    assert "each line by itself" in elman("info", out).out
    # A generated text ends with its line.
    for seed in range(3):
        said = lm.generate(max_tokens=200, seed=seed)
        assert "\n" not in said[:-1]
    refused = elman("evaluate", out, str(text), "--batch-size", "2")
    assert refused.code == 2
    assert "not in lanes" in refused.err


def test_a_run_resumes_and_other_settings_are_refused(
    elman: Elman, toy: Path, tmp_path: Path
) -> None:
    whole, halves = str(tmp_path / "whole"), str(tmp_path / "halves")
    train = ["train", "lm", str(toy), *SMALL, "--set", "training.chunk_length=8"]
    assert elman(*train, "--steps", "8", "--out", whole).code == 0
    assert elman(*train, "--steps", "5", "--out", halves).code == 0
    resumed = elman("train", "lm", "--resume", "--out", halves, "--steps", "8")
    assert resumed.code == 0, resumed.err
    refused = elman(*train, "--steps", "2", "--set", "training.vary_chunks=true")
    assert refused.code == 2
    assert "vary_chunks" in refused.err
