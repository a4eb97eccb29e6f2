"""Every command that reports, and the JSON that other programs rely on."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from elman.base.documents import read_json
from elman.runs.run_folder import ORIGIN

Elman = Callable[..., Any]
Small = tuple[str, ...]
SPECIMENS = Path(__file__).parents[1] / "unit" / "runs" / "specimens"


def test_train_ends_with_one_json_object(
    elman: Elman, small: Small, toy: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    result = elman("train", "lm", toy, "--out", out, "--steps", 4, *small, "--test", toy, "--json")
    assert result.code == 0, result.err
    summary = json.loads(result.out.strip().split("\n")[-1])
    expected = {"out", "perplexity", "steps", "tokens", "seconds", "tokens_per_second"}
    assert expected <= summary.keys()
    assert summary["out"] == str(out)
    assert summary["steps"] == 4
    assert 1 < summary["perplexity"] < 100
    assert summary["test_perplexity"] > 1
    for name in ("config.json", "model.safetensors", "tokenizer.json", "metrics.jsonl", "card.md"):
        assert (out / name).is_file()


def test_train_says_what_it_chose_and_how_it_goes(
    elman: Elman, small: Small, toy: Path, tmp_path: Path
) -> None:
    result = elman("train", "lm", toy, "--out", tmp_path / "run", "--steps", 4, *small)
    assert "characters" in result.err
    assert "held out for validation" in result.err
    assert "validation after step 4: perplexity" in result.err
    assert "  | " in result.err  # the sample
    assert "validation perplexity" in result.out
    assert str(tmp_path / "run") in result.out


def test_train_without_data_uses_a_built_in_corpus(
    elman: Elman, small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = elman("train", "lm", "--steps", 1, *small, "--json")
    assert result.code == 0, result.err
    assert "python-docs" in result.err
    assert json.loads(result.out)["out"] == "runs/lm-python-docs"


def test_new_run_folders_are_numbered(
    elman: Elman, toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = [
        elman("train", "window", toy, "--steps", 1, "--seed", 1, "--json").json["out"]
        for _ in range(3)
    ]
    assert folders == ["runs/window-toy", "runs/window-toy-2", "runs/window-toy-3"]


def test_a_run_can_be_lengthened(elman: Elman, small: Small, toy: Path, tmp_path: Path) -> None:
    command = ("train", "lm", toy, "--out", tmp_path / "run", *small, "--json")
    assert elman(*command, "--steps", 2).json["steps"] == 2
    longer = elman("train", "lm", "--out", tmp_path / "run", "--resume", "--steps", 5, "--json")
    assert longer.json["steps"] == 5
    again = elman(*command, "--steps", 7, "--resume")
    assert again.json["steps"] == 7, again.err


def test_evaluate(elman: Elman, model: Path, toy: Path) -> None:
    found = elman("evaluate", model, toy, "--json").json
    keys = {"perplexity", "nats_per_token", "bits_per_byte", "tokens", "oov", "seconds"}
    assert keys <= found.keys()
    assert found["perplexity"] == pytest.approx(math.exp(found["nats_per_token"]))
    assert found["tokens"] == len(toy.read_text(encoding="utf-8"))
    assert found["oov"] == 0
    text = elman("evaluate", model, toy).out
    assert "bits per byte" in text
    assert f"{found['nats_per_token']:.4f}" in text
    # Without unknown tokens it would be the same figure again.
    assert found["perplexity_without_unknown"] == pytest.approx(found["perplexity"])
    assert "without unknowns" not in text


def test_evaluate_counts_unknown_words(elman: Elman, words: Path, tmp_path: Path) -> None:
    text = tmp_path / "new.txt"
    text.write_text("xylophones zigzag\n")
    found = elman("evaluate", words, text, "--json").json
    assert (found["tokens"], found["oov"]) == (3, 2)
    assert found["perplexity_without_unknown"] > 1


def test_next_is_a_list_of_tokens_and_probabilities(elman: Elman, model: Path) -> None:
    found = elman("next", model, "th", "-k", "4", "--json").json
    assert [sorted(entry) for entry in found] == [["probability", "token"]] * 4
    probabilities = [entry["probability"] for entry in found]
    assert probabilities == sorted(probabilities, reverse=True)
    assert 0 < sum(probabilities) <= 1
    text = elman("next", model, "th", "-k", "4").out.split("\n")
    assert text[0].split() == ["rank", "token", "probability"]
    assert f"{probabilities[0]:.4f}" in text[1]


def test_all_next_probabilities_sum_to_one(elman: Elman, words: Path) -> None:
    found = elman("next", words, "the", "-k", "100000", "--json").json
    assert sum(entry["probability"] for entry in found) == pytest.approx(1.0, abs=1e-5)


def test_score_is_a_table(elman: Elman, words: Path, tmp_path: Path) -> None:
    text = tmp_path / "lines.txt"
    text.write_text("the student lost\nxylophones\n", encoding="utf-8")
    lines = elman("score", words, text).out.rstrip("\n").split("\n")
    header = lines[0].split("\t")
    assert header[:4] == ["line", "index", "text", "surprisal"]
    rows = [dict(zip(header, line.split("\t"), strict=True)) for line in lines[1:]]
    assert [row["text"] for row in rows] == [
        "the",
        "student",
        "lost",
        "<eos>",
        "xylophones",
        "<eos>",
    ]
    assert [row["line"] for row in rows] == ["1"] * 4 + ["2"] * 2
    assert rows[4]["unknown"] == "1"
    marked = elman("score", words, text, "--unknown", "mark", "--json").json
    assert marked[4]["surprisal"] is None


def test_score_reads_stdin_and_changes_base(elman: Elman, model: Path) -> None:
    bits, nats, bans = (
        elman("score", model, "--base", base, "--json", stdin="the student\n").json
        for base in ("2", "e", "10")
    )
    assert len(bits) == len("the student\n")
    assert bits[0]["surprisal"] == pytest.approx(nats[0]["surprisal"] / math.log(2))
    assert bans[0]["surprisal"] == pytest.approx(nats[0]["surprisal"] / math.log(10))
    explicit = elman("score", model, "-", "--json", stdin="the student\n").json
    assert explicit == bits


def test_score_sums_over_words_and_lines(elman: Elman, model: Path) -> None:
    text = "the student lost\nthe pupil\n"
    totals = {
        unit: sum(
            row["surprisal"]
            for row in elman("score", model, "--unit", unit, "--json", stdin=text).json
        )
        for unit in ("token", "word", "line")
    }
    assert totals["word"] == pytest.approx(totals["token"])
    assert totals["line"] == pytest.approx(totals["token"])


def test_score_refuses_lines_beyond_a_limit(elman: Elman, model: Path) -> None:
    long = "a " * 2_000
    found = elman("score", model, "-", "--max-line", 1_000, stdin=long)
    assert found.code == 1
    assert "line 1 is longer than 1,000 bytes" in found.err
    assert elman("score", model, "-", "--unit", "line", stdin=long).code == 0


def test_score_of_nothing_is_a_header(elman: Elman, model: Path) -> None:
    assert elman("score", model, stdin="").out.startswith("line\tindex")
    empty = elman("score", model, "--json", stdin="").ok()
    assert (empty.json, empty.err) == ([], "· there is no line to read\n")


def test_embed_shows_neighbours(elman: Elman, words: Path) -> None:
    found = elman("embed", words, "the", "student", "--neighbours", 3, "--json").json
    assert [entry["word"] for entry in found] == ["the", "student"]
    assert len(found[0]["vector"]) == 16
    assert len(found[0]["neighbours"]) == 3
    text = elman("embed", words, "the", "--neighbours", 3).out
    assert text.split("\n")[0].split() == ["word", "neighbour", "cosine"]
    assert found[0]["neighbours"][0]["token"] in text


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_embed_writes_vectors_of_lines(
    elman: Elman, words: Path, tmp_path: Path, suffix: str
) -> None:
    text, out = tmp_path / "lines.txt", tmp_path / f"vectors{suffix}"
    text.write_text("the student\n\nthe student lost\n", encoding="utf-8")
    result = elman("embed", words, text, "--out", out)
    assert (result.code, result.out) == (0, f"{out}\n"), result.err
    sequences = dict(np.load(out)) if suffix == ".npz" else load_file(out)
    assert [sequences[key].shape for key in ("0", "1", "2")] == [(32,)] * 3
    elman("embed", words, text, "--out", out, "--kind", "token")
    tokens = dict(np.load(out)) if suffix == ".npz" else load_file(out)
    assert [tokens[key].shape for key in ("0", "1", "2")] == [(2, 32), (0, 32), (3, 32)]
    np.testing.assert_allclose(tokens["2"][-1], sequences["2"], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(tokens["2"][:2], tokens["0"], rtol=1e-4, atol=1e-6)
    elman("embed", words, text, "--out", out, "--kind", "word")
    types = dict(np.load(out)) if suffix == ".npz" else load_file(out)
    assert types["2"].shape == (3, 16)


def test_embed_prints_vectors_as_json(elman: Elman, model: Path) -> None:
    found = elman("embed", model, "-", "--kind", "sequence", "--json", stdin="a\nb\n").json
    assert [len(vector) for vector in found] == [32, 32]


def test_info_explains_the_parts(elman: Elman, model: Path) -> None:
    about = elman("info", model, "--json").json
    assert about["kind"] == "recurrent"
    assert about["tokenizer"]["kind"] == "char"
    assert about["parameters"] == sum(about["parameters_by_part"].values())
    assert about["kernels"]["stack.layers.0"] in ("cpu", "torch")  # the first wants numba and MKL
    assert about["summary"]["steps"] == 40
    assert about["history"][-1]["step"] == 40
    text = elman("info", model).out
    for word in (
        "parameters",
        "kernel of stack.layers.0",
        "size on disk",
        "validation",
        "training",
    ):
        assert word in text


def test_info_of_a_model_without_recurrent_layers(elman: Elman) -> None:
    rows = elman("info", SPECIMENS / "format-1-window").out
    assert re.search(r"kernels +torch's own operations \(no layer is recurrent\)\n", rows)
    assert "kernels" not in elman("info", SPECIMENS / "format-1-lm").out


def test_info_explains_a_mixture(elman: Elman, words: Path, words_too: Path) -> None:
    about = elman("info", f"0.7*{words}+0.3*{words_too}", "--json").json
    assert about["kind"] == "mixture"
    assert [part["weight"] for part in about["parts"]] == pytest.approx([0.7, 0.3])
    assert f"0.3 * {words_too}" in elman("info", f"0.7*{words}+0.3*{words_too}").out


def test_a_mixture_scores_between_its_parts(
    elman: Elman, words: Path, words_too: Path, toy: Path
) -> None:
    def tokens(name: object) -> list[float]:
        rows = elman("score", name, "--json", "--base", "e", stdin="the student lost\n").json
        return [math.exp(-row["surprisal"]) for row in rows]

    mixed = tokens(f"0.7*{words}+0.3*{words_too}")
    parts = zip(tokens(words), tokens(words_too), strict=True)
    assert mixed == pytest.approx([0.7 * a + 0.3 * b for a, b in parts], rel=1e-4)
    evaluation = elman("evaluate", f"{words}+{words_too}", toy, "--json")
    assert evaluation.code == 0, evaluation.err
    text = elman("generate", f"{words}+{words_too}", "the", "--max-tokens", 5, "--seed", 1)
    assert text.code == 0, text.err


def test_corpora(elman: Elman) -> None:
    names = [entry["name"] for entry in elman("corpora", "--json").json]
    assert "python-docs" in names
    assert all(name in elman("corpora").out for name in names)


KINDS = ("recurrent", "window", "maxent", "elmo", "sequence_to_sequence")
"""What built-in recipes are of."""


def test_recipes_can_be_shown_and_used_again(elman: Elman, tmp_path: Path) -> None:
    names = [entry["name"] for entry in elman("recipes", "--json").json]
    assert {"char-lstm", "ptb-zaremba-large", "ptb-awd-lstm"} <= set(names)
    assert all(name in elman("recipes").out for name in names)
    for name in names:
        shown = elman("config", "show", name, "--explain")
        assert shown.code == 0, shown.err
        recipe = tmp_path / f"{name}.toml"
        recipe.write_text(shown.out, encoding="utf-8")
        assert tomllib.loads(shown.out)["model"]["kind"] in KINDS
        again = elman("config", "show", recipe, "--json").json
        assert again == elman("config", "show", name, "--json").json


def test_config_of_a_run(elman: Elman, model: Path) -> None:
    shown = tomllib.loads(elman("config", "show", model).out)
    assert shown["model"]["hidden_size"] == 32
    assert shown["training"]["steps"] == 40
    saved = read_json(model / "config.json")
    del saved[ORIGIN]  # a signature, not a setting
    assert elman("config", "show", model, "--json").json == saved


def test_data_check(elman: Elman, toy: Path) -> None:
    found = elman("data", "check", toy, "--json").json
    assert found["bytes"] == toy.stat().st_size
    assert found["tokenizer"]["kind"] == "char"
    text = elman("data", "check", toy).out
    assert "tokenizer" in text
    assert found["tokenizer"]["reason"] in text


def test_data_check_names_damaged_lines(elman: Elman, tmp_path: Path) -> None:
    damaged = tmp_path / "latin1.txt"
    damaged.write_bytes(b"fine\n" * 50 + "caf\xe9\n".encode("latin1") + b"fine\n" * 50)
    result = elman("data", "check", damaged)
    assert result.code == 1
    assert "line 51, column 4: byte 0xe9" in result.out


def test_version(elman: Elman) -> None:
    import elman as package

    assert elman("--version").out == f"elman {package.__version__}\n"
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]  # it is written in one place
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "elman.__version__"}
