"""The table of a large vocabulary gives what its tokenizer.json gives, which is the truth."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from elman.base.errors import ElmanError
from elman.tokens import pretokenized, tokenizer, word_table, words
from elman.tokens.fitting import Fitting
from elman.tokens.tokenizer import TOKENIZER_FILES, Tokenizer
from elman.tokens.word_table import TableBackend, WordTable

WORDS = ["the", "cat", "sat", "Ω", "é", "naïve", "a", "ab", "b", "don't", ".", ",", "zebra"]
TEXTS = ["the cat sat .\nnaïve Ω zebra", "The Cat's don't, dog!", "", "é a ab\n\nb <unk> <eos> ,x"]


@pytest.fixture(params=[pretokenized.build, words.build], ids=["pretokenized", "word"])
def built(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Tokenizer:
    monkeypatch.setattr(tokenizer, "LARGE", 10)
    build: Callable[..., tokenizers.Tokenizer] = request.param
    return Tokenizer(build(WORDS))


def test_a_tokenizer_with_a_table_is_the_same(built: Tokenizer, tmp_path: Path) -> None:
    built.save(tmp_path / "tokenizer.json")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(TOKENIZER_FILES)
    opened = Tokenizer.load(tmp_path / "tokenizer.json")
    assert isinstance(opened.backend, TableBackend)
    for name in ("kind", "vocab_size", "boundary_id", "unknown_id", "hash", "old_hash"):
        assert getattr(opened, name) == getattr(built, name)
    assert opened.training_form == built.training_form
    assert opened.spellings() == built.spellings()
    assert np.array_equal(opened.line_ends(), built.line_ends())
    assert np.array_equal(opened.starts_word(), built.starts_word())
    assert opened.id("zebra") == built.id("zebra")
    fitted = [Fitting(one).tokenizer_for(["The Cat ."]) for one in (opened, built)]
    for text in TEXTS:
        assert opened.encode(text).tolist() == built.encode(text).tolist()
        assert opened.encode_spans(text)[0].tolist() == built.encode_spans(text)[0].tolist()
        assert opened.encode_spans(text)[1] == built.encode_spans(text)[1]
        assert opened.words(text) == built.words(text)
        assert opened.decode(opened.encode(text)) == built.decode(built.encode(text))
        assert fitted[0].encode(text).tolist() == fitted[1].encode(text).tolist()
    assert opened.to_json() == built.to_json()


def test_a_tokenizer_with_a_table_is_saved_without_searching(
    built: Tokenizer, tmp_path: Path
) -> None:
    built.save(tmp_path / "tokenizer.json")
    opened = Tokenizer.load(tmp_path / "tokenizer.json")
    table = opened._kind.vocab
    assert isinstance(table, WordTable)
    before = table.num_asked
    (tmp_path / "copy").mkdir()
    opened.save(tmp_path / "copy" / "tokenizer.json")
    assert table.num_asked == before
    for name in TOKENIZER_FILES:
        assert (tmp_path / name).read_bytes() == (tmp_path / "copy" / name).read_bytes()


def test_many_words_are_looked_up_in_a_dictionary(
    built: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretokenized, "MANY", 5)
    built.save(tmp_path / "tokenizer.json")
    opened = Tokenizer.load(tmp_path / "tokenizer.json")
    assert isinstance(opened._kind.vocab, WordTable)
    for text in TEXTS:
        assert opened.encode(text).tolist() == built.encode(text).tolist()
        assert opened.decode(opened.encode(text)) == built.decode(built.encode(text))
    assert isinstance(opened._kind.vocab, dict)


def test_the_file_is_the_truth(built: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    built.save(path)
    path.write_text(path.read_text(encoding="utf-8").replace("zebra", "horse"), encoding="utf-8")
    changed = Tokenizer.load(path)
    assert not isinstance(changed.backend, TableBackend)
    assert changed.id("horse") == built.id("zebra")
    assert changed.hash != built.hash


def test_a_damaged_table_is_noticed(built: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    built.save(path)
    table = word_table.table_file(path)
    data = table.read_bytes()
    assert data.count(b"zebra\n") == 1
    for damaged, problem in (
        (data.replace(b"zebra\n", b"horse\n"), "was changed after it was written"),
        (data[:-1], "cut short"),
    ):
        table.unlink()
        table.write_bytes(damaged)
        with pytest.raises(ElmanError, match=problem) as told:
            Tokenizer.load(path)
        assert told.value.hint == "remove it: tokenizer.json has the same words"
    table.unlink()
    assert Tokenizer.load(path).hash == built.hash


def test_vocabularies_without_a_table(
    built: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokenizer.json"
    monkeypatch.setattr(tokenizer, "LARGE", 1000)
    built.save(path)
    monkeypatch.setattr(tokenizer, "LARGE", 10)
    Tokenizer(pretokenized.build([*WORDS, "line\nend"])).save(path)
    gaps = built.to_json().replace(f'"zebra":{built.id("zebra")}', '"zebra":77')
    Tokenizer.from_json(gaps).save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["tokenizer.json"]
    assert Tokenizer.load(path).id("zebra") == 77
