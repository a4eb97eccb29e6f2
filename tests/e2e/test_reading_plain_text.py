"""Unknown words are counted wherever a text is measured, and plain text is read like the training
text of a model of tokenised words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from live import call as ask
from live import serving

from elman import api
from elman.testing import TOY_TEXT

Elman = Callable[..., Any]
PLAIN = "The student opened her book.\n"
TOKENISED = "the student opened her book .\n"


@pytest.fixture(scope="module")
def tokenised(elman: Elman, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of lower-case, tokenised words."""
    folder = tmp_path_factory.mktemp("tokenised")
    (folder / "toy.txt").write_text(TOY_TEXT, encoding="utf-8")
    elman("train", "ngram", folder / "toy.txt", "--out", folder / "run").ok()
    return folder / "run"


def rows(printed: str) -> list[dict[str, str]]:
    header, *lines = (line.split("\t") for line in printed.rstrip("\n").split("\n"))
    return [dict(zip(header, line, strict=True)) for line in lines]


def test_score_says_what_is_unknown_in_its_first_line(elman: Elman, tokenised: Path) -> None:
    found = elman("score", tokenised, stdin="zzzq xqwv blorg\n").ok()
    first, *_, last = found.err.splitlines()
    assert first == "· 3 of 4 tokens are unknown to the model (75.0%)"
    assert "total" in last
    assert "without unknown tokens" in last
    found = elman("score", tokenised, "--no-end", stdin=TOKENISED).ok()
    assert found.err.startswith("· 0 of 6 tokens are unknown to the model (0.0%)\n")
    assert "training text" not in found.err
    assert "without" not in found.err


def test_plain_text_is_read_like_the_training_text(elman: Elman, tokenised: Path) -> None:
    plain = elman("score", tokenised, "--unit", "word", stdin=PLAIN).ok()
    assert "· read like the training text: lower-cased, punctuation split off" in plain.err
    written = elman("score", tokenised, "--unit", "word", stdin=TOKENISED).ok()
    assert [row["text"] for row in rows(plain.out)] == [*PLAIN.split(), "<eos>"]
    of_plain, of_written = (
        [float(row["surprisal"]) for row in rows(found.out)] for found in (plain, written)
    )
    # The full stop counts for the word that it is attached to.
    assert of_plain[:4] == of_written[:4]
    assert of_plain[4] == pytest.approx(of_written[4] + of_written[5], abs=1e-5)
    assert not any(int(row["unknown"]) for row in rows(plain.out))
    as_is = elman("score", tokenised, "--unit", "word", "--as-is", stdin=PLAIN).ok()
    assert as_is.err.startswith("· 2 of 6 tokens are unknown to the model (33.3%)\n")
    assert [row["unknown"] for row in rows(as_is.out)] == ["1", "0", "0", "0", "1", "0"]


def test_evaluate_reads_plain_text_so_too(elman: Elman, tokenised: Path, tmp_path: Path) -> None:
    for name, text in (("plain.txt", PLAIN), ("written.txt", TOKENISED)):
        (tmp_path / name).write_text(text * 3, encoding="utf-8")
    plain = elman("evaluate", tokenised, tmp_path / "plain.txt", "--json").ok()
    written = elman("evaluate", tokenised, tmp_path / "written.txt", "--json").ok()
    assert "read like the training text" in plain.err
    assert "read like the training text" not in written.err
    assert plain.json["perplexity"] == pytest.approx(written.json["perplexity"])
    assert (plain.json["oov"], plain.json["tokens"]) == (0, 21)
    # Bits per byte are about the text as given, which has fewer bytes.
    bits = {name: found.json["bits_per_byte"] for name, found in (("p", plain), ("w", written))}
    assert bits["p"] * len(PLAIN) == pytest.approx(bits["w"] * len(TOKENISED))
    as_is = elman("evaluate", tokenised, tmp_path / "plain.txt", "--as-is").ok()
    assert as_is.out.splitlines()[0].split() == ["unknown", "tokens", "6", "of", "18", "(33.33%)"]
    assert "perplexity without unknowns" in as_is.out


def test_a_suite_of_plain_sentences_is_no_tie(
    elman: Elman, tokenised: Path, tmp_path: Path
) -> None:
    pair = {"sentence_good": "The old professor lost.", "sentence_bad": "The professor old lost."}
    path = tmp_path / "order.jsonl"
    path.write_text(json.dumps(pair) + "\n", encoding="utf-8")
    found = elman("evaluate", tokenised, path, "--suite", "blimp").ok()
    assert found.err.startswith("· 0 of 10 tokens are unknown to the model (0.0%)\n")
    assert "lower-cased" in found.err
    assert found.out.splitlines()[1].split() == ["order", "1", "0.0%", "0", "1", "1"]


def test_mix_says_what_is_unknown(elman: Elman, tokenised: Path, tmp_path: Path) -> None:
    text = tmp_path / "plain.txt"
    text.write_text(PLAIN + "The zzzq opened.\n", encoding="utf-8")
    found = elman("mix", tokenised, tokenised, "--tune", text).ok()
    first, second, *_ = found.err.splitlines()
    assert first == "· 1 of 12 tokens is unknown to the model (8.3%)"
    assert second.startswith("· read like the training text: lower-cased")
    as_is = elman("mix", tokenised, tokenised, "--tune", text, "--as-is", "--json").ok()
    assert (as_is.json["oov"], as_is.json["tokens"]) == (5, 10)
    assert "training text" not in as_is.err


def test_quality_says_what_is_unknown(elman: Elman, tokenised: Path) -> None:
    found = elman("quality", "-", "--by", tokenised, stdin=PLAIN * 3).ok()
    assert found.err.startswith("· read like the training text: lower-cased")
    assert found.out.splitlines()[1].split() == ["unknown", "to", "the", "model", "0.00%"]
    as_is = elman("quality", "-", "--by", tokenised, "--as-is", stdin=PLAIN * 3).ok()
    assert as_is.out.splitlines()[1].split()[-1] == "33.33%"


@pytest.mark.parametrize("command", ["generate", "next"])
def test_prompts_say_what_is_unknown(elman: Elman, tokenised: Path, command: str) -> None:
    found = elman(command, tokenised, "the zzzq xqwv").ok()
    first, *_ = found.err.splitlines()
    assert first == "· 2 of 3 tokens of the prompt are unknown to the model (66.7%): zzzq, xqwv"
    assert "unknown" not in elman(command, tokenised, "the student").ok().err


def test_the_server_says_what_is_unknown(tokenised: Path) -> None:
    with serving({"words": api.load(tokenised)}) as live:
        _, found = ask(live, "/v1/score", {"text": "The zzzq book."})
        as_is = ask(live, "/v1/score", {"text": "The zzzq book.", "as_is": True})[1]
    assert found["reads_as"] == "lower-cased, punctuation split off"
    assert [row["num_unknown"] for row in found["rows"]] == [0, 1, 0, 0]
    assert found["num_unknown"] == 1
    assert found["num_tokens"] == 5
    unknown = found["rows"][1]["surprisal"]
    assert found["total_without_unknown"] == pytest.approx(found["total"] - unknown)
    assert found["perplexity_without_unknown"] == pytest.approx(
        2 ** (found["total_without_unknown"] / 4)
    )
    assert (as_is["num_unknown"], as_is["reads_as"]) == (3, "")


def test_the_server_generates_unknown_words_only_if_asked(elman: Elman, tmp_path: Path) -> None:
    text, run = tmp_path / "rare.txt", tmp_path / "run"
    text.write_text("the <unk> saw the <unk> .\n" * 30, encoding="utf-8")
    elman("train", "ngram", text, "--out", run, "--tokenizer", "pretokenized").ok()
    with serving({"rare": api.load(run)}) as live:
        body = {"prompt": "the", "max_tokens": 8, "temperature": 0}
        _, without = ask(live, "/v1/completions", body)
        _, asked = ask(live, "/v1/completions", {**body, "unk": True})
    assert "<unk>" not in without["choices"][0]["text"]
    assert "<unk>" in asked["choices"][0]["text"]


def test_python_reads_plain_text_so_too(tokenised: Path) -> None:
    lm = api.load(tokenised)
    assert lm.perplexity(PLAIN) == pytest.approx(lm.perplexity(TOKENISED))
    assert lm.perplexity(PLAIN, as_is=True) != pytest.approx(lm.perplexity(TOKENISED))
    assert lm.logprob(PLAIN) == pytest.approx(lm.logprob(TOKENISED))
    assert lm.fitted(PLAIN).reads_as == "lower-cased, punctuation split off"
    assert lm.fitted(TOKENISED) is lm.tokenizer
