from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elman.base.errors import ElmanError, UsageError
from elman.batches.conditional import conditional_batch
from elman.batches.lines import encode_lines
from elman.text.pairs import check_same_length, lines_of, pair_of_files
from elman.tokens.tokenizer import Tokenizer
from elman.tokens.tokenizer_config import TokenizerConfig
from elman.tokens.train import train_tokenizer

TEXT = "ein Mann .\n\nzwei  Hunde\nein ganz anderer Satz\n"


@pytest.fixture(params=["char", "byte", "word", "bpe"])
def tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> Tokenizer:
    path = tmp_path / "learnt.txt"
    path.write_text(TEXT, encoding="utf-8")
    config = TokenizerConfig(kind=request.param, vocab_size=300 * (request.param == "bpe"))
    return train_tokenizer([path], config)[0]


@pytest.mark.parametrize("text", [TEXT, TEXT[:-1], "ein\n", "\n\nein", "ein\r\nMann\r\n"])
def test_each_line_is_what_its_text_alone_would_be(
    tokenizer: Tokenizer, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(text.encode())
    expected = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
    lines = encode_lines(path, tokenizer)
    assert [lines[i].tolist() for i in range(len(lines))] == [
        tokenizer.encode(line).tolist() for line in expected
    ]
    assert lines.lengths.tolist() == [len(tokenizer.encode(line)) for line in expected]
    assert list(lines_of(path)) == expected


@given(st.lists(st.text(st.characters(exclude_characters="\n\r\0", codec="utf-8")), min_size=1))
@settings(max_examples=30, suppress_health_check=list(HealthCheck))
def test_lines_come_back_as_they_were(tmp_path: Path, lines: list[str]) -> None:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="")
    if lines[0].startswith("\ufeff"):
        return  # a mark of the encoding, not text
    tokenizer = train_tokenizer([path], TokenizerConfig(kind="byte"))[0]
    found = encode_lines(path, tokenizer)
    assert [tokenizer.decode(found[i]) for i in range(len(found))] == lines


def test_unequal_files_are_told_with_their_lines() -> None:
    with pytest.raises(ElmanError, match=r"a\.en has 1,000 lines and a\.de has 999") as error:
        check_same_length(Path("a.en"), Path("a.de"), 1000, 999)
    assert error.value.hint


def test_parallel_text_is_two_files(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_text("x\n", encoding="utf-8")
    assert pair_of_files([tmp_path / "a", tmp_path / "b"]) == (tmp_path / "a", tmp_path / "b")
    with pytest.raises(UsageError, match="two files, source and target, not 3"):
        pair_of_files([tmp_path / name for name in "abc"])
    with pytest.raises(UsageError, match="source and target are the same file"):
        pair_of_files([tmp_path / "a", tmp_path / "a"])
    (tmp_path / "pairs.tsv").write_text("one\tun\ntwo\tdeux\n", encoding="utf-8")
    with pytest.raises(UsageError, match="two files, source and target, not 1") as error:
        pair_of_files(tmp_path / "pairs.tsv")
    assert "cut -f1 pairs.tsv > SOURCE; cut -f2 pairs.tsv > TARGET" in error.value.hint


def test_texts_begin_and_end_with_the_boundary() -> None:
    batch = conditional_batch((), [[5, 6, 7], [], [8]], boundary_id=2)
    assert batch.tokens_BT.tolist() == [[2, 5, 6, 7], [2, 2, 2, 2], [2, 8, 2, 2]]
    assert batch.targets_BT.tolist() == [[5, 6, 7, 2], [2, 2, 2, 2], [8, 2, 2, 2]]
    assert batch.mask_BT.sum(dim=1).tolist() == [4, 1, 2]
    assert batch.num_targets == batch.num_tokens == 7
    part = batch.rows(slice(1, 3))
    assert (part.num_rows, part.num_targets, part.fresh) == (2, 3, True)
