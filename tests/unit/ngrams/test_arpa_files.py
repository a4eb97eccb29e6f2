from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from elman.base.errors import ElmanError, UsageError
from elman.ngrams.arpa_files import is_arpa, save_arpa, tokenizer_beside
from elman.ngrams.arpa_read import read_arpa
from elman.ngrams.arpa_write import words_of
from elman.ngrams.counting import count
from elman.ngrams.reading import read_stretches, word_tokenizer
from elman.ngrams.smoothing import build
from elman.tasks.ngram.settings import NgramConfig
from elman.tokens.tokenizer import Tokenizer
from elman.tokens.tokenizer_config import TokenizerConfig
from elman.tokens.train import train_tokenizer
from elman.tokens.word_table import TableBackend

TEXT = "The cat's hat -- a hat!\nThe <s> dog </s> sat, <UNK> and so on.\nthe end\n" * 3


def made(tmp_path: Path, kind: str, *, lowercase: bool = False, text: str = TEXT) -> Tokenizer:
    file = tmp_path / "text.txt"
    file.write_text(text)
    size = 300 if kind == "bpe" else 0
    least = 0 if kind in ("byte", "bpe") else 1
    config = TokenizerConfig(kind=kind, lowercase=lowercase, min_count=least, vocab_size=size)
    return train_tokenizer([file], config)[0]


@pytest.mark.parametrize(
    ("kind", "lowercase"),
    [("pretokenized", False), ("pretokenized", True), ("word", False), ("word", True)]
    + [(kind, False) for kind in ("char", "byte", "bpe")],
)
def test_what_is_written_reads_back_with_its_tokenizer(
    tmp_path: Path, kind: str, lowercase: bool
) -> None:
    tokenizer = made(tmp_path, kind, lowercase=lowercase)
    ids = tokenizer.encode(TEXT)
    sizes = {"vocab_size": tokenizer.vocab_size, "boundary_id": tokenizer.boundary_id}
    model = build(count(ids, 3, **sizes), NgramConfig(order=3))
    path = tmp_path / "m.arpa.gz"
    notes = save_arpa(path, model, tokenizer)
    assert len(notes) == 1
    assert "m.tokenizer.json" in notes[0]
    beside = Tokenizer.load(tokenizer_beside(path))
    assert beside.hash == tokenizer.hash
    found = read_arpa(path, beside)
    assert found.model.score(ids) == pytest.approx(model.score(ids), abs=1e-4)
    assert found.model.vocab_size == model.vocab_size


def test_pretokenised_text_needs_no_tokenizer(tmp_path: Path) -> None:
    text = "a <unk> c\nc b\n"
    tokenizer = made(tmp_path, "pretokenized", text=text)
    ids = tokenizer.encode(text)
    sizes = {"vocab_size": tokenizer.vocab_size, "boundary_id": tokenizer.boundary_id}
    assert (
        save_arpa(tmp_path / "m.arpa", build(count(ids, 2, **sizes), NgramConfig()), tokenizer)
        == []
    )
    assert not tokenizer_beside(tmp_path / "m.arpa").exists()


@pytest.mark.parametrize("more", ["", " </s>", " <UNK> <s>"])
@pytest.mark.parametrize("order", [1, 2])
def test_words_as_bytes_are_written_like_words(tmp_path: Path, more: str, order: int) -> None:
    file = tmp_path / "text.txt"
    file.write_text(f"a é <unk> \x01c 学生 c\nc b{more} {'long' * 99}\n" * 2, encoding="utf-8")
    stretches = read_stretches([file])
    tokenizer = word_tokenizer(stretches, "pretokenized")
    whole = Tokenizer.from_json(tokenizer.to_json())
    assert isinstance(tokenizer.backend, TableBackend)
    assert not isinstance(whole.backend, TableBackend)
    sizes = {"vocab_size": tokenizer.vocab_size, "boundary_id": tokenizer.boundary_id}
    counted = build(count(stretches.ids(tokenizer), order, **sizes), NgramConfig(order=order))
    for name, one in (("table", tokenizer), ("whole", whole)):
        (tmp_path / name).mkdir()
        save_arpa(tmp_path / name / "m.arpa", counted, one)
    written = [
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        for name in ("table", "whole")
    ]
    assert written[0] == written[1]


def test_another_tokenizer_beside_is_not_replaced_and_not_used(tmp_path: Path) -> None:
    words, characters = made(tmp_path, "word"), made(tmp_path, "char")
    sizes = {"vocab_size": words.vocab_size, "boundary_id": words.boundary_id}
    model = build(count(words.encode(TEXT), 2, **sizes), NgramConfig())
    save_arpa(tmp_path / "m.arpa", model, words)
    save_arpa(tmp_path / "m.arpa.gz", model, words)  # the same tokenizer serves both
    with pytest.raises(ElmanError, match="the tokenizer beside the file has no"):
        read_arpa(tmp_path / "m.arpa", characters)
    characters.save(tokenizer_beside(tmp_path / "m.arpa"))
    with pytest.raises(UsageError, match="another tokenizer"):
        save_arpa(tmp_path / "m.arpa", model, words)


def test_no_two_tokens_are_written_alike() -> None:
    words = words_of(["<eos>", "<unk>", " ", "<0x20>", "<0x20><0x>", "a", "<s>", "<0x3C>s>"], 1)
    assert len(set(words)) == len(words)
    assert words[1:3] == [b"<unk>", b"<0x20>"]


@pytest.mark.parametrize("name", ["m.lm", "M.ARPA", "m.arpa", "m", "m.txt", "m.gz", "m.ARPA.GZ"])
def test_a_file_is_known_by_its_name_or_its_content(tmp_path: Path, name: str) -> None:
    path, text = tmp_path / name, b"\n\\data\\\nngram 1=2\n\\1-grams:\n-1\t</s>\n-1\ta\n\\end\\\n"
    path.write_bytes(gzip.compress(text) if name.lower().endswith(".gz") else text)
    assert is_arpa(path)
    assert read_arpa(path).model.score(np.array([2])).shape == (1,)


@pytest.mark.parametrize("content", [b"", b"some text\n", b"\\data", b"\x1f\x8brubbish"])
def test_other_files_are_no_arpa(tmp_path: Path, content: bytes) -> None:
    for name in ("m.lm", "m.gz"):
        (tmp_path / name).write_bytes(content)
        assert not is_arpa(tmp_path / name)
    assert not is_arpa(tmp_path / "nothing.arpa")
    assert not is_arpa(tmp_path)
