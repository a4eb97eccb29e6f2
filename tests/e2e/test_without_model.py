"""Commands without MODEL use the models that come with Elman, and say so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from elman.runs.packaged import packaged

Elman = Callable[..., Any]
NOTE = "no MODEL given: using"


def test_commands_without_a_model(elman: Elman) -> None:
    for arguments, stdin in (
        (("generate", "--max-tokens", 5), ""),
        (("generate", "In the beginning", "--max-tokens", 5), ""),
        (("generate", "-", "--max-tokens", 5), "In the beginning"),
        (("next", "and the Lord", "-k", 3), ""),
        (("score", "--unit", "word"), "in the beginning\n"),
    ):
        done = elman(*arguments, stdin=stdin).ok()
        assert NOTE in done.err, arguments
        assert done.out.strip()


def test_a_table_is_no_model(elman: Elman, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("item,sentence\n1,in the beginning\n", encoding="utf-8")
    done = elman("score", table, "--column", "sentence").ok()
    assert NOTE in done.err
    assert done.out.splitlines()[1].split("\t")[:4] == ["1", "2", "1", "in"]
    assert elman("score", "--column", "sentence", stdin="").error[0] == "stdin is empty"


def test_a_name_is_a_model(elman: Elman) -> None:
    done = elman("next", "kneser-ney-5", "in the beginning", "--json").ok()
    assert NOTE not in done.err
    assert done.json[0]["token"] == "of"


def test_a_folder_that_is_missing_is_no_prompt(elman: Elman) -> None:
    assert "there is no run folder" in elman("generate", "runs/mine").error[0]


def test_models_lists_them(elman: Elman) -> None:
    names = {row["name"] for row in elman("models", "--json").ok().json}
    assert names == set(packaged())
    done = elman("models").ok()
    lines = {line.split()[0]: line for line in done.out.splitlines()}
    assert lines["kneser-ney-5"].endswith("170.5 per word")
    assert lines["char-lstm"].endswith(" per character")
    assert "cannot be compared" in done.err


def test_weights_of_one_byte_are_a_run(elman: Elman, model: Any, tmp_path: Any) -> None:
    elman("convert", model, tmp_path / "small", "--quantise", "int8").ok()
    runs = model, tmp_path / "small"
    before, after = (elman("next", run, "the", "-k", 1, "--json").ok().json[0] for run in runs)
    assert abs(before["probability"] - after["probability"]) < 0.05
    sizes = [(run / "model.safetensors").stat().st_size for run in runs]
    assert sizes[1] < 0.5 * sizes[0]
