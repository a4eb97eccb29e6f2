"""`elman quality`, as a user types it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import elman as library

Elman = Callable[..., Any]


def test_texts_side_by_side(toy: Path, words: Path, tmp_path: Path, elman: Elman) -> None:
    generated = tmp_path / "generated.txt"
    generated.write_text("the student opened their book .\nzebras zebras zebras\n")
    out = elman("quality", generated, toy, "--by", words, "--against", toy).out
    assert "nats per character" in out
    assert "unknown to the model" in out
    copied = next(line for line in out.splitlines() if line.startswith("copied 8-grams"))
    assert copied.endswith("100.00%")


def test_as_json_and_in_python(toy: Path, words: Path, tmp_path: Path, elman: Elman) -> None:
    generated = tmp_path / "generated.txt"
    generated.write_text(toy.read_text()[:500])
    arguments = ("--by", words, "--against", toy, "--unit", "char", "--json")
    found = elman("quality", generated, *arguments).json
    lm = library.load(words, device="cpu")
    evaluation = lm.evaluate(generated)
    assert found["nats_per_token"] == pytest.approx(evaluation.nats_per_token)
    assert found["nats_per_character"] * 500 == pytest.approx(
        evaluation.nats_per_token * evaluation.tokens
    )
    assert found["longest_copied"] == found["tokens"] == 500
    same = library.quality(generated, by=lm, against=toy, unit="char")
    assert same.distinct == {int(n): share for n, share in found["distinct"].items()}


def test_tables(elman: Elman, words: Path, words_too: Path, toy: Path, tmp_path: Path) -> None:
    """The header and the other columns were measured as text, without a word."""
    lines = toy.read_text().splitlines()
    plain, table, named = (tmp_path / name for name in ("text.txt", "table.csv", "named.csv"))
    plain.write_text("".join(f"{line}\n" for line in lines))
    for path, column in ((table, "sentence"), (named, "text")):
        rows = "".join(f'{number},"{line}"\n' for number, line in enumerate(lines))
        path.write_text(f"id,{column}\n{rows}")
    options = ("--by", words, "--json")
    expected = elman("quality", plain, *options).ok().json
    del expected["text"]
    for arguments in ((table, "--column", "sentence"), (named,)):
        found = elman("quality", *arguments, *options).ok()
        assert "plain text" not in found.err
        assert expected.items() <= found.json.items()
    assert library.quality(named, by=words) == library.quality(plain, by=words)
    note = f"· {table} is read as plain text: --column NAME reads a table\n"
    for command in (("quality", table), ("mix", words, words_too, "--tune", table)):
        assert elman(*command).ok().err.startswith(note)
    mixed = elman("mix", words, words_too, "--tune", table, "--column", "sentence", "--json")
    assert mixed.ok().json == elman("mix", words, words_too, "--tune", plain, "--json").json
    message, _ = elman("quality", plain, "--column", "x").error
    assert "--column x has no effect" in message


def test_stdin(elman: Elman) -> None:
    out = elman("quality", "-", stdin="a b a b a b a b\n").out
    assert "distinct 2-grams" in out
    assert "copied" not in out


def test_stdin_is_read_once(elman: Elman) -> None:
    assert elman("quality", "-", "-", stdin="some text\n").error[0] == "stdin can be read only once"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("missing.txt",), "missing.txt"),
        (("-", "--unit", "line"), "unit cannot be 'line'"),
        (("-", "--by", "missing"), "no run folder"),
        (("-",), "stdin is empty"),
    ],
)
def test_wrong_input_is_a_sentence(
    arguments: tuple[str, ...], message: str, elman: Elman, tmp_path: Path
) -> None:
    found = elman("quality", *arguments, stdin="")
    assert found.code
    assert message in found.error[0]


def test_no_training_text(elman: Elman, toy: Path) -> None:
    assert "missing.txt" in elman("quality", toy, "--against", "missing.txt").error[0]


def test_text_that_is_not_utf8(elman: Elman, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes(b"caf\xe9\n")
    found = elman("quality", tmp_path / "x.txt")
    assert found.code == 1
    assert "is not UTF-8" in found.error[0]
