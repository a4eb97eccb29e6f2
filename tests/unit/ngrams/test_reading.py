from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elman.base.errors import ElmanError
from elman.ngrams.reading import read_stretches, word_tokenizer
from elman.ngrams.scratch import Scratch
from elman.tokens import pretokenized
from elman.tokens import tokenizer as tokenizer_module
from elman.tokens.tokenizer import Tokenizer
from elman.tokens.word_table import TableBackend

TEXT = "the cat, the dog\n\nthe <unk> isn't a\tcat\rnor <eos> a dog\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "text.txt"


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.text(
        st.one_of(
            st.sampled_from(
                "ab.'  \n\t\r\x0b\x1c\x1f\x85\xa0\u1680\u2003\u2028\u202f\u205f\u3000é字"
            ),
            st.characters(exclude_categories=["Cs"], exclude_characters="\0"),
        ),
    ),
    st.sampled_from(["pretokenized", "word"]),
    st.booleans(),
)
def test_ids_are_the_tokenizers_own(file: Path, text: str, kind: str, lowercase: bool) -> None:
    # What reading a file does to line ends and marks at the beginning is not the subject here.
    text = re.sub(r"\r+\n", "\n", text.removeprefix("\ufeff") + "\n")
    file.write_bytes(text.encode())
    stretches = read_stretches([file], lowercase=lowercase)
    tokenizer = word_tokenizer(stretches, kind, lowercase=lowercase)
    assert stretches.ids(tokenizer).tolist() == tokenizer.encode(text).tolist()
    assert stretches.num_bytes == len(text.encode())


def test_the_vocabulary_falls_in_frequency(file: Path) -> None:
    file.write_text(TEXT)
    stretches = read_stretches([file])
    assert word_tokenizer(stretches, "pretokenized").spellings() == [
        "<eos>", "<unk>", "the", "a", "dog", "cat", "cat,", "isn't", "nor",
    ]  # fmt: skip
    few = word_tokenizer(stretches, "word", vocab_size=5, min_count=2)
    assert few.spellings() == ["<eos>", "<unk>", "the", "a", "cat"]


def test_the_table_grows_as_it_must(file: Path) -> None:
    words = [f"word{i}" for i in range(70_000)] + ["x" * 600_000]
    text = " ".join(words) + "\n" + " ".join(words[::-1]) + "\n"
    file.write_text(text)
    stretches = read_stretches([file])
    assert sorted(stretches.spellings[1:]) == sorted(words)
    read = [stretches.spellings[number] for number in stretches.numbers]
    assert read == [*words, "\n", *words[::-1], "\n"]


@pytest.mark.parametrize("num_threads", [1, 3])
def test_a_long_word_is_one_word(file: Path, num_threads: int) -> None:
    file.write_text(f"a line\n{'x' * (2 << 20)} y\nthe last")
    stretches = read_stretches([file], num_threads=num_threads)
    tokenizer = word_tokenizer(stretches, "pretokenized")
    assert stretches.ids(tokenizer).tolist() == tokenizer.encode(file.read_text() + "\n").tolist()


@pytest.mark.parametrize("num_threads", [1, 3])
def test_many_blocks_are_one_text(
    file: Path, num_threads: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("elman.ngrams.reading._BLOCK", 50)
    monkeypatch.setattr("elman.ngrams.reading._SMALL_BLOCK", 50)
    monkeypatch.setattr("elman.ngrams.reading.FEW", 5)
    monkeypatch.setattr("elman.ngrams.stretch_table.FEW", 5)
    lines = [f"line {i} {'abc' * (i % 5)} end" for i in range(300)]
    file.write_text("\n".join(lines))
    plain = read_stretches([file], num_threads=num_threads)
    words = [word for line in lines for word in [*line.split(), "\n"]]
    assert [plain.spellings[number] for number in plain.numbers] == words
    with Scratch(tmp_path) as scratch:
        on_disk = read_stretches([file], num_threads=num_threads, scratch=scratch)
        assert [on_disk.spellings[number] for number in on_disk.numbers] == words


@pytest.mark.parametrize("num_threads", [1, 3])
def test_words_beyond_ascii(file: Path, num_threads: int) -> None:
    text = "é 学生 😀  ߿ ࠀ ퟿  ￿ 𐀀 􏿿 é\n\nß"
    file.write_text(text, encoding="utf-8")
    read = read_stretches([file], num_threads=num_threads)
    words = [word for line in text.split("\n") for word in [*line.split(), "\n"]]
    assert [read.spellings[number] for number in read.numbers] == words


@pytest.mark.parametrize(
    "wrong",
    [b"\x80", b"\xc0\x80", b"\xc1\xbf", b"\xc3", b"\xe0\x80\x80", b"\xe0\x9f\xbf", b"\xe1\x80",
     b"\xed\xa0\x80", b"\xf0\x8f\xbf\xbf", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80",
     b"\xf1\x80\x80", b"\xe1\x80\x41", b"\xf1\x80\x80\x41", b"\0"],
)  # fmt: skip
def test_what_is_not_text_is_refused(file: Path, wrong: bytes) -> None:
    for content in (b"good\n" + wrong, b"good\n" + wrong + b" \n"):
        file.write_bytes(content)
        with pytest.raises(ElmanError, match="line 2"):
            read_stretches([file])


def test_what_is_not_utf8_is_refused_with_its_line(file: Path) -> None:
    file.write_bytes(b"good\nbad \xff\n")
    with pytest.raises(ElmanError, match="line 2"):
        read_stretches([file])


def test_an_error_while_a_block_is_numbered_does_not_hang(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More blocks than tables wait for one that fails."""

    def fail(table: object, text: object) -> None:
        raise MemoryError

    file.write_text("line\n" * 100)
    monkeypatch.setattr("elman.ngrams.reading._BLOCK", 50)
    monkeypatch.setattr("elman.ngrams.stretch_table.Table.numbers", fail)
    with pytest.raises(MemoryError):
        read_stretches([file], num_threads=2)


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("more", [[], ["with space"]])
def test_words_are_found_in_a_table(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lowercase: bool, more: list[str]
) -> None:
    monkeypatch.setattr(tokenizer_module, "LARGE", 3)
    words = ["a", "b", "bb", "é", "学生", *more]
    Tokenizer(pretokenized.build(words, lowercase=lowercase)).save(tmp_path / "tokenizer.json")
    known = Tokenizer.load(tmp_path / "tokenizer.json")
    assert isinstance(known.backend, TableBackend)
    text = "a new b\n<eos> <unk> É 学生 学\nspace with bb\n"
    file.write_text(text, encoding="utf-8")
    stretches = read_stretches([file], lowercase=lowercase)
    for _ in range(2):
        assert stretches.ids(known).tolist() == known.encode(text).tolist()
