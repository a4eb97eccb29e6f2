"""`elman data check`: counts that can be checked by hand, damage reported and not raised."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from elman.base.errors import ElmanError
from elman.batches.encoded import encode_files
from elman.evaluate import data_check
from elman.evaluate.data_check import check
from elman.tokens import choose
from elman.tokens.tokenizer_config import TokenizerConfig
from elman.tokens.train import train_tokenizer


def test_a_small_text_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("the cat sat\n\nthe cat sat\nthe dog, né Rex", encoding="utf-8")
    report = check(path)
    expected = {
        "files": [str(path)],
        "bytes": 41,
        "bytes_on_disk": 41,
        "lines": 4,
        "words": 10,
        "characters": 40,
        "word_types": 6,
        "character_types": 16,
        "tokens": 40,
        "tokens_exact": True,
        "vocab_size": 18,
        "blank_lines": 1,
        "duplicate_lines": 1,
        "very_long_lines": 0,
        "longest_line": 15,
        "nul_bytes": 0,
        "problems": ["40 characters: too few to learn much from"],
    }
    assert {key: report[key] for key in expected} == expected
    assert report["tokenizer"]["kind"] == "char"
    assert json.loads(json.dumps(report)) == report


def test_wrong_bytes_are_listed_by_line(tmp_path: Path) -> None:
    path = tmp_path / "latin.txt"
    lines = [b"good line"] * 100
    for number in range(10, 60):
        lines[number - 1] = b"caf\xe9 noir"
    path.write_bytes(b"\n".join(lines) + b"\n")
    report = check(path)
    errors = report["encoding_errors"]
    assert errors["lines"] == 50
    assert len(errors["first"]) == 20
    assert [error["line"] for error in errors["first"]] == list(range(10, 30))
    assert errors["first"][0] == {
        "file": str(path),
        "line": 10,
        "column": 4,
        "byte": "0xe9",
        "text": "caf� noir",
    }
    assert report["lines"] == 100
    assert any("not UTF-8" in problem for problem in report["problems"])


def test_binary_and_utf16_files_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(range(256)) * 50)
    report = check(path)
    assert report["nul_bytes"] == 50
    assert len(report["problems"]) >= 2
    path.write_bytes(b"one\0")
    assert "1 NUL byte: this may not be a text file" in check(path)["problems"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf16_is_named(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(("hello\n" * 3000).encode(encoding))
    report = check(path)
    assert report["nul_bytes"] == 18_000
    assert (
        f"{path} is {encoding.upper()}, not UTF-8: add --encoding {encoding}" in report["problems"]
    )
    assert not any("cp1252" in one or "NUL" in one for one in report["problems"])


def test_lone_carriage_returns_are_pointed_out(tmp_path: Path) -> None:
    path = tmp_path / "old.txt"
    path.write_bytes(b"one line of some length\r" * 1000)
    (problem,) = [p for p in check(path)["problems"] if "carriage" in p]
    assert problem.startswith("1,000 carriage returns inside lines")
    path.write_bytes(b"one line of some length\r\n" * 1000)
    assert not any("carriage" in p for p in check(path)["problems"])


def test_the_last_tenth_is_compared_with_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("all the same words\n" * 900 + "a zebra Ω again\n" * 90, encoding="utf-8")
    unseen = check(path)["out_of_vocabulary"]
    assert unseen["words"]["types"] == 4
    assert unseen["words"]["tokens"] == 360
    assert unseen["words"]["examples"] == ["a", "again", "zebra", "Ω"]
    assert unseen["characters"]["examples"] == ["g", "z", "b", "i", "n", "Ω"] or set(
        unseen["characters"]["examples"]
    ) == set("gzbinΩ")
    assert unseen["characters"]["tokens"] == 90 * 6
    assert 0.5 < unseen["words"]["share"] < 1


def test_long_and_repeated_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_check, "_BLOCK_SIZE", 1 << 12)
    path = tmp_path / "a.txt"
    path.write_text("again\n" * 10 + "x" * 30_000 + "\n" + "y" * 9_999, encoding="utf-8")
    report = check(path)
    assert report["very_long_lines"] == 1
    assert report["longest_line"] == 30_000
    assert report["duplicate_lines"] == 9
    assert report["lines"] == 12
    assert len(report["problems"]) == 2


def test_the_tokens_are_those_that_training_would_see(shared_data: Path, tmp_path: Path) -> None:
    path = shared_data / "ptb" / "ptb.train.txt"
    report = check(path)
    tokenizer, _ = train_tokenizer(path, TokenizerConfig())
    assert report["tokenizer"]["kind"] == tokenizer.kind
    assert report["vocab_size"] == tokenizer.vocab_size == 10_000
    assert report["tokens"] == encode_files(path, tokenizer, cache=tmp_path).num_tokens == 929_589
    shards = check(shared_data / "news_shards")
    tokenizer, counts_V = train_tokenizer(shared_data / "news_shards", TokenizerConfig())
    assert shards["vocab_size"] == tokenizer.vocab_size
    assert shards["tokens"] == counts_V.sum()


def test_the_tokens_of_a_larger_text_are_estimated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "SMALL_TEXT_BYTES", 1 << 20)
    monkeypatch.setattr(data_check, "SAMPLE_BYTES", 1 << 20)
    path = tmp_path / "a.txt.gz"
    lines = [f"Line {i} says that {i * i % 977} sheep, no more, slept.\n" for i in range(30_000)]
    path.write_bytes(gzip.compress("".join(lines).encode(), 1))
    report = check(path)
    assert report["tokenizer"]["kind"] == "bpe"
    assert not report["tokens_exact"]
    assert report["bytes"] > report["bytes_on_disk"]
    tokenizer, _ = train_tokenizer(path, TokenizerConfig())
    exact = encode_files(path, tokenizer, cache=tmp_path / "cache").num_tokens
    assert abs(report["tokens"] / exact - 1) < 0.05


def test_a_missing_or_empty_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ElmanError, match="does not exist"):
        check(tmp_path / "none.txt")
    (tmp_path / "empty.txt").touch()
    with pytest.raises(ElmanError, match="is empty"):
        check(tmp_path / "empty.txt")
