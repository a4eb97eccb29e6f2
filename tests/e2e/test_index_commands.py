"""Indexes through the command line: make one, find words, ask why, measure what is copied."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from live import call, serving

from elman import load
from elman.testing import TOY_TEXT

Elman = Callable[..., Any]
LINES = TOY_TEXT.split("\n")


@pytest.fixture(scope="module")
def indexes(elman: Elman, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("index")
    (place / "toy.txt").write_text(TOY_TEXT, encoding="utf-8")
    elman("index", place / "toy.txt", "--tokenizer", "word", "--out", place / "index").ok()
    options = ("--tokenizer", "word", "--order", 3, "--valid", place / "toy.txt")
    elman("train", "infinigram", place / "toy.txt", *options, "--out", place / "model").ok()
    return place


def test_find(elman: Elman, indexes: Path) -> None:
    found = elman("find", indexes / "index", "the student", "--json").ok().json
    count = " ".join(TOY_TEXT.split()).count("the student ")
    assert found["count"] == count
    assert sum(row["count"] for row in found["continuations"]) <= count
    for place in found["places"]:
        assert place["file"] == str(indexes / "toy.txt")
        assert "the student" in LINES[place["line"] - 1]
    shown = elman("find", indexes / "model", "the student", "--places", 2, "-k", 1).ok().out
    assert shown.count("[the student]") == 2
    assert "more" in shown
    nothing = elman("find", indexes / "index", "the the the", "--json").ok().json
    assert (nothing["count"], nothing["continuations"], nothing["places"]) == (0, [], [])


def test_find_names_unknown_words(elman: Elman, indexes: Path, tmp_path: Path) -> None:
    """Other texts, read with the words of the first one, have unknown words of their own."""
    (tmp_path / "other.txt").write_text("the zebra saw the okapi\n", encoding="utf-8")
    options = ("--tokenizer", indexes / "index" / "tokenizer.json", "--out", tmp_path / "other")
    elman("index", tmp_path / "other.txt", *options).ok()
    found = elman("find", tmp_path / "other", "the xylophone").ok()
    assert found.out.startswith("2 in")
    assert "· unknown, so looked up as <unk>, like every unknown word of the text: xylophone" in (
        found.err
    )
    assert "unknown" not in elman("find", tmp_path / "other", "the <unk>").ok().err


def test_lines_that_contain_the_mark_of_a_line_end(elman: Elman, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the cat, sat <eos>\nthe dog sat.\n")
    told = elman("index", text, "--out", tmp_path / "index").ok().err
    assert "the text itself contains <eos>, which is read as the end of a line: places" in told
    assert "token 2 " in elman("find", tmp_path / "index", "cat").ok().out


def test_an_index_is_a_model(elman: Elman, indexes: Path) -> None:
    words = elman("next", indexes / "index", "the student", "-k", 1000, "--json").ok().json
    assert sum(word["probability"] for word in words) == pytest.approx(1, abs=1e-4)
    told = elman("info", indexes / "index").ok().out
    assert "bytes a token" in told
    assert "order 1" in told


def test_score_why(elman: Elman, indexes: Path) -> None:
    text = "\n".join(LINES[:2]) + "\n"
    rows = elman("score", indexes / "model", "-", "--why", "--json", stdin=text).ok().json
    assert {row["line"] for row in rows} == {1, 2}
    last = [row for row in rows if row["line"] == 2][-1]
    assert last["match_length"] > 3
    assert 0 <= last["match_weight"] < 1
    assert last["place"].startswith(f"{indexes / 'toy.txt'}:")
    lines = elman("score", indexes / "model", "-", "--why", "--unit", "line", stdin=text).ok().out
    assert len(lines.splitlines()) == 3
    assert "match_length" in lines


def test_other_models_share_stretches_with_an_index(
    elman: Elman, indexes: Path, model: Path
) -> None:
    options = ("--why", "--index", indexes / "index", "--json")
    rows = elman("score", model, "-", *options, "--unit", "word", stdin=LINES[0]).ok().json
    assert "match_share" not in rows[0]
    lengths = [row["match_length"] for row in rows]
    assert max(lengths) >= len(LINES[0].split())
    (made,) = elman("generate", model, "the", "--max-tokens", 20, *options).ok().json
    assert "ids" not in made
    assert {source["share"] for source in made["why"]} == {None}


def test_a_server_says_where_tokens_come_from(elman: Elman, indexes: Path, model: Path) -> None:
    models = {"chars": load(model), "exact": load(indexes / "model")}
    text = "\n".join(LINES[:2])
    asked = {"model": "exact", "text": text, "lines": True}
    with serving(models, warm=False) as live:
        status, found = call(live, "/v1/sources", asked)
        assert status == 200, found
        assert (found["index"], found["exact"]) == ("exact", True)
        scored = elman("score", indexes / "model", "-", "--why", "--json", stdin=text).json
        assert [(one["length"], one["share"]) for one in found["tokens"]] == [
            (row["match_length"], row["match_share"]) for row in scored
        ]
        for one in found["tokens"]:
            assert one["file"] == "toy.txt"
            assert one["token"] == "<eos>" or one["token"] in LINES[one["line"] - 1]
            assert (
                one["found"].strip().replace(" ", "").endswith(one["token"].removeprefix("<eos>"))
            )
        # Another model: stretches that it shares with the text.
        parts = {"model": "chars", "prompt": LINES[0][:9], "text": LINES[0][9:]}
        status, found = call(live, "/v1/sources", parts)
        assert status == 200, found
        assert (found["index"], found["exact"]) == ("exact", False)
        words = LINES[0][9:].split()
        pieces = [parts["text"][one["start"] : one["end"]].strip() for one in found["tokens"]]
        assert "".join(pieces) == "".join(words)[-len("".join(pieces)) :]
        last = found["tokens"][-1]
        assert last["length"] == 1 + len(LINES[0].split())  # with the boundary token
        assert last["share"] is None
        for wrong, message in (
            ({"index": "chars"}, "has no index"),
            ({"prompt": "a", "lines": True}, "not before lines"),
            ({"text": "a " * 5000}, "too long to explain"),
        ):
            status, answer = call(live, "/v1/sources", {**asked, "lines": False, **wrong})
            assert status == 400
            assert message in answer["error"]["message"]
        _, found = call(live, "/v1/find", {"model": "exact", "text": "the student"})
        assert {one["file"] for one in found["result"]["places"]} == {"toy.txt"}
    with serving({"chars": models["chars"]}, warm=False) as live:
        status, answer = call(live, "/v1/sources", {"text": text})
        assert status == 400
        assert "elman index" in answer["error"]["message"]


def test_generate_why(elman: Elman, indexes: Path) -> None:
    options = ("--max-tokens", 5, "--seed", 1)
    plain = elman("generate", indexes / "model", "the student", *options).ok().out
    told = elman("generate", indexes / "model", "the student", *options, "--why").ok().out
    assert told.startswith(plain)
    assert len(told.removeprefix(plain).strip().splitlines()) == 6


def test_evaluate_novelty_and_agreement(elman: Elman, indexes: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    own = (indexes / "model", indexes / "toy.txt")
    options = ("--novelty", "--tokens", 50)
    found = elman("evaluate", *own, *options, "--json").ok().json
    assert found["generated"]["tokens"] == 50
    assert found["data"]["shares"][0] == 1  # it is the training text
    assert len(found["lengths"]) == len(found["generated"]["shares"])
    shown = elman("evaluate", *own, *options, "--curve", tmp_path / "curve.svg").ok().out
    assert "longest stretch" in shown
    table = elman("evaluate", *own, "--agreement", tmp_path / "agreement.svg").ok().out
    assert "one continuation" in table
    assert (tmp_path / "curve.svg").exists()
    assert (tmp_path / "agreement.svg").exists()


def test_wrong_use(elman: Elman, indexes: Path, model: Path) -> None:
    for command in (
        ("score", model, indexes / "toy.txt", "--why"),
        ("generate", model, "the", "--why"),
        ("evaluate", model, indexes / "toy.txt", "--novelty"),
    ):
        message, hint = elman(*command).error
        assert "has no index of its training text" in message
        assert "elman index" in hint
    message, _ = elman("generate", model, "the", "--why", "--index", model).error
    assert "has no index" in message
    message, hint = elman("score", model, indexes / "toy.txt", "--index", indexes / "index").error
    assert "without --why" in message
    message, _ = elman("evaluate", model, indexes / "toy.txt", "--tokens", 5).error
    assert "without --novelty" in message
    table = ("--column", "text", "--why")
    message, _ = elman("score", indexes / "model", indexes / "toy.txt", *table).error
    assert "not a table" in message
    message, hint = elman("find", model, "the").error
    assert "is a language model, not a model with an index" in message
    assert "`elman index` makes" in hint
    message, _ = elman("find", indexes / "index", "").error
    assert "nothing to find" in message
