"""Options and commands for daily work: encodings, stdin, --overwrite, compare, completion."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elman.base.threads import usable_cores
from elman.recipes.resolve import settings_of
from elman.tasks import built_in_tasks
from elman.testing import TOY_TEXT

Elman = Callable[..., Any]


def test_text_in_another_encoding_and_from_stdin(elman: Elman, tmp_path: Path) -> None:
    text = TOY_TEXT.replace("student", "étudiant")
    file = tmp_path / "latin.txt"
    file.write_bytes(text.encode("latin-1"))
    ngram = ("train", "ngram", "--order", 2, "--json", "--out")
    refused = elman(*ngram, tmp_path / "refused", file)
    assert refused.code == 1
    assert "--encoding cp1252" in refused.error[1]
    elman(*ngram, tmp_path / "file", file, "--encoding", "latin-1").ok()
    elman(*ngram, tmp_path / "stdin", "-", stdin=text).ok()
    expected = [
        elman("next", tmp_path / name, "the", "--json").ok().json for name in ("file", "stdin")
    ]
    assert expected[0] == expected[1]
    assert any(row["token"] == "étudiant" for row in expected[0])


def test_overwrite_replaces_a_run_and_nothing_else(elman: Elman, toy: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train = ("train", "ngram", toy, "--out", out, "--json")
    elman(*train, "--order", 2).ok()
    (out / "notes.txt").write_text("mine")
    assert "--overwrite" in elman(*train, "--order", 3).error[1]
    elman(*train, "--order", 3, "--overwrite").ok()
    assert elman("info", out, "--json").ok().json["model"]["order"] == 3
    assert (out / "notes.txt").read_text() == "mine"


def test_a_run_that_fails_does_not_overwrite(elman: Elman, toy: Path, tmp_path: Path) -> None:
    out, small = tmp_path / "run", tmp_path / "small.txt"
    elman("train", "ngram", toy, "--out", out, "--order", 2).ok()
    before = sorted((path.name, path.read_bytes()) for path in out.iterdir())
    small.write_text("too little\n")
    assert elman("train", "lm", small, "--out", out, "--overwrite").code != 0
    assert sorted((path.name, path.read_bytes()) for path in out.iterdir()) == before
    assert "needs the run folder" in elman("train", "lm", toy, "--overwrite").error[0]


def test_compare(elman: Elman, toy: Path, tmp_path: Path) -> None:
    for order in (2, 3):
        out = tmp_path / "runs" / f"order-{order}"
        elman("train", "ngram", toy, "--valid", toy, "--out", out, "--order", order).ok()
    compared = elman("compare", *sorted((tmp_path / "runs").iterdir())).ok()
    assert "has not ended" not in compared.err
    header, best, *_ = compared.out.splitlines()
    assert header.split()[:2] == ["run", "order"]
    assert best.split()[0].endswith("order-3")
    told = elman("compare", tmp_path / "runs", toy, tmp_path, "--json").ok().err
    assert told == f"· left out, as they are no run folders: {toy}, {tmp_path}\n"
    rows = elman("compare", tmp_path / "runs", "--json").ok().json
    assert [row["settings"] for row in rows] == [{"model.order": 3}, {"model.order": 2}]
    assert rows[0]["figures"]["perplexity"] < rows[1]["figures"]["perplexity"]
    (tmp_path / "runs" / "order-2" / "metrics.jsonl").write_text("")
    assert "· *: the run has not ended" in elman("compare", tmp_path / "runs").ok().err


def test_runs_with_other_shares_of_unknown_tokens_do_not_compare(
    elman: Elman, toy: Path, tmp_path: Path
) -> None:
    valid, runs = tmp_path / "valid.txt", tmp_path / "runs"
    valid.write_text("the student xylophone quagmire\n" * 20)
    small = ("--steps", 1, "--hidden-size", 4, "--tokenizer", "word", "--valid", valid)
    lm = elman("train", "lm", toy, "--test", valid, "--out", runs / "lm", *small).ok()
    assert "40 of 100 (40.00%)" in lm.out
    last = lm.out.splitlines()
    assert [line.split()[:2] for line in last if "unknown" in line] == [
        ["validation", "unknown"],
        ["test", "unknown"],
    ]
    counted = elman("train", "ngram", toy, "--valid", valid, "--out", runs / "ngram").ok()
    assert "validation unknown tokens  40 of 100 (40.00%)" in counted.out
    assert "unknown tokens" not in elman("compare", runs).ok().err
    few = ("--set", "tokenizer.vocab_size=5")
    elman("train", "ngram", toy, "--valid", valid, *few, "--out", runs / "few").ok()
    compared = elman("compare", runs).ok()
    assert "their perplexities and bits per byte do not compare" in compared.err
    assert "unknown tokens" in compared.out.splitlines()[0]
    assert "40.00%" in compared.out
    rows = {Path(row["run"]).name: row for row in elman("compare", runs, "--json").ok().json}
    assert rows["lm"]["unknown"] == {"validation": 0.4, "test": 0.4}
    assert rows["few"]["unknown"]["validation"] > 0.4
    metrics = runs / "lm" / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:-1]))
    (unfinished,) = elman("compare", runs / "lm", "--json").ok().json
    assert (unfinished["finished"], unfinished["unknown"]) == (False, {"validation": 0.4})


def test_more_threads_than_cores(elman: Elman, toy: Path, tmp_path: Path) -> None:
    """A thousand threads on two cores took a hundred times as long, and were printed as cores."""
    cores = usable_cores()
    lm = ("train", "lm", toy, "--out", tmp_path / "run", "--steps", 1, "--hidden-size", 4)
    told = elman(*lm, "--threads", 1000).ok().err
    assert told.startswith(f"· --threads 1000: using {cores}, as there ")
    assert "1,000" not in told
    assert "--threads" not in elman("next", tmp_path / "run", "a", "--threads", 1).ok().err


def test_options_are_settings_of_their_tasks() -> None:
    for task in built_in_tasks():
        known = {*settings_of(task), "model.vectors", "model.embeddings.path", "training.start"}
        for option in task.options:
            if option.setting is not None and option.refusal is None:
                assert option.setting in known, (task.name, option.name)


def test_common_settings_are_options(elman: Elman, toy: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    given = ("--cell", "gru", "--hidden-size", 12, "--embedding-size", 8, "--tokenizer", "char")
    given += ("--batch-size", 4, "--learning-rate", 0.01, "--set", "model.tied=false")
    elman("train", "lm", toy, "--out", out, "--steps", 1, *given).ok()
    about = elman("info", out, "--json").ok().json
    assert (about["model"]["cell"], about["model"]["hidden_size"]) == ("gru", 12)
    assert about["tokenizer"]["kind"] == "char"


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("elman tra", "train"),
        ("elman train lm --ce", "--cell"),
        ("elman train lm --cell g", "gru"),
        ("elman train lm --recipe char-l", "char-lstm"),
    ],
)
def test_the_shell_completes(line: str, offered: str) -> None:
    variables = {
        "_ELMAN_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split()) - 1),
    }
    command = [sys.executable, "-m", "elman.cli"]
    done = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    assert offered in done.stdout.split(), done.stderr
