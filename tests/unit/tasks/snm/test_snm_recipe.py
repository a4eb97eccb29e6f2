from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from counting_runs import fit_counts
from elman.base.documents import read_json
from elman.base.errors import UsageError
from elman.tasks.opening import open_run
from elman.tasks.snm.sparse_matrix import MODEL_FILE, load_matrix
from elman.tasks.snm.task import describe
from elman.testing import TOY_TEXT
from elman.tokens.tokenizer import Tokenizer


def test_a_run_folder_has_all_that_is_needed(tmp_path: Path) -> None:
    lines = TOY_TEXT.splitlines(keepends=True)
    for name, some in {"train": lines[::2], "valid": lines[1::4], "test": lines[3::4]}.items():
        (tmp_path / f"{name}.txt").write_text("".join(some))
    heard: list[str] = []
    out = tmp_path / "run"
    summary = fit_counts(
        "snm",
        [str(tmp_path / "train.txt")],
        out,
        valid=[str(tmp_path / "valid.txt")],
        test=[str(tmp_path / "test.txt")],
        model={"order": 3, "max_skip": 2},
        note=heard.append,
    )
    assert sorted(path.name for path in out.iterdir()) == [
        "card.md", "config.json", "metrics.jsonl", "snm.safetensors", "tokenizer.json",
    ]  # fmt: skip
    assert any("left out" in sentence for sentence in heard)
    config = read_json(out / "config.json")
    assert (config["task"], config["model"]["max_skip"]) == ("snm", 2)
    assert 1 < summary["perplexity"] < 10
    assert 1 < summary["test_perplexity"] < 20
    tokenizer = Tokenizer.load(out / "tokenizer.json")
    model, header = load_matrix(out / MODEL_FILE)
    assert header["tokenizer"] == tokenizer.hash
    text = (tmp_path / "valid.txt").read_text()
    nats = -float(model.score(tokenizer.encode(text)).astype(np.float64).mean())
    assert summary["nats_per_token"] == pytest.approx(nats)
    about = describe(open_run(out))
    assert sum(row["entries"] for row in about["contexts"]) == summary["entries"]
    assert about["summary"] == summary
    assert f"{summary['test_perplexity']:.2f}" in (out / "card.md").read_text()
    assert open_run(out).model.vocab_size == tokenizer.vocab_size
    with pytest.raises(UsageError, match="already holds a run"):
        fit_counts("snm", [str(tmp_path / "train.txt")], out)
