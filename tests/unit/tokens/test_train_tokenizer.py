"""Vocabularies made from files: right counts, falling frequency, bounded memory."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from elman.base.errors import UsageError
from elman.tokens import bpe, characters, counting
from elman.tokens.counting import BoundedCounts, most_frequent
from elman.tokens.tokenizer import Tokenizer
from elman.tokens.tokenizer_config import KINDS as KIND_TABLE
from elman.tokens.tokenizer_config import TokenizerConfig
from elman.tokens.train import train_tokenizer

KINDS = ("char", "byte", "word", "pretokenized", "bpe")
TEXT = (
    "The students opened their books, and the pupils (all of them) opened theirs.\n"
    "Don't shout: the café is 100% full!\n\n"
) * 3


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text(TEXT, encoding="utf-8")
    return file


@pytest.mark.parametrize("kind", KINDS)
def test_counts_are_those_of_the_encoded_text(path: Path, kind: str) -> None:
    config = TokenizerConfig(kind=kind, vocab_size=300 if kind == "bpe" else 0)  # type: ignore[arg-type]
    tokenizer, counts_V = train_tokenizer(path, config)
    assert counts_V.dtype == np.int64
    expected = np.bincount(tokenizer.encode(TEXT), minlength=tokenizer.vocab_size)
    assert counts_V.tolist() == expected.tolist()


@pytest.mark.parametrize("kind", ["char", "word", "pretokenized"])
def test_ids_fall_in_frequency(path: Path, kind: str) -> None:
    _, counts_V = train_tokenizer(path, TokenizerConfig(kind=kind))  # type: ignore[arg-type]
    assert (np.diff(counts_V[2:]) <= 0).all()
    assert counts_V[2] > counts_V[-1]


@pytest.mark.parametrize("kind", ["char", "word", "pretokenized"])
def test_rare_units_are_unknown(path: Path, kind: str) -> None:
    path.write_text("a a a b b c\n", encoding="utf-8")
    config = TokenizerConfig(kind=kind, min_count=2)  # type: ignore[arg-type]
    tokenizer, counts_V = train_tokenizer(path, config)
    assert tokenizer.id("b") is not None
    assert tokenizer.id("c") is None
    assert counts_V[1] == (2 if kind == "char" else 1)  # the line end is a rare character too
    config = TokenizerConfig(kind=kind, min_count=1, vocab_size=4)  # type: ignore[arg-type]
    tokenizer, counts_V = train_tokenizer(path, config)
    assert tokenizer.vocab_size == 4 == len(counts_V)
    assert counts_V.sum() == (12 if kind == "char" else 7)


def test_a_closed_vocabulary_is_kept_whole_and_an_open_one_is_not(path: Path) -> None:
    path.write_text("the <unk> sat\nthe cat slept", encoding="utf-8")
    tokenizer, counts_V = train_tokenizer(path, TokenizerConfig(kind="pretokenized"))
    assert tokenizer.spellings() == ["<eos>", "<unk>", "the", "cat", "sat", "slept"]
    assert counts_V.tolist() == [2, 1, 2, 1, 1, 1]
    path.write_text("the dog sat\nthe cat slept\n", encoding="utf-8")
    tokenizer, counts_V = train_tokenizer(path, TokenizerConfig(kind="pretokenized"))
    assert tokenizer.spellings() == ["<eos>", "<unk>", "the"]
    assert counts_V.tolist() == [2, 4, 2]


def test_penn_treebank_has_its_published_vocabulary(shared_data: Path) -> None:
    tokenizer, counts_V = train_tokenizer(shared_data / "ptb" / "ptb.train.txt", TokenizerConfig())
    assert tokenizer.kind == "pretokenized"
    assert tokenizer.vocab_size == 10_000
    assert counts_V.sum() == 929_589
    assert (counts_V > 0).all()
    assert counts_V[:2].tolist() == [42_068, 45_020]


def test_counting_in_processes_gives_the_same(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = train_tokenizer(path, TokenizerConfig(kind="word"))
    monkeypatch.setattr(counting, "default_workers", lambda num_bytes: 2)
    together = train_tokenizer(path, TokenizerConfig(kind="word"))
    assert alone[0].hash == together[0].hash
    assert alone[1].tolist() == together[1].tolist()


def test_words_beyond_the_limit_are_forgotten_rarest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedCounts, "LIMIT", 100)
    counts = BoundedCounts()
    truth: Counter[str] = Counter()
    for round in range(50):
        words = Counter({f"rare{round}-{i}": 1 for i in range(20)})
        words.update({"common": 10, "usual": 5})
        counts.add(words)
        truth.update(words)
        assert len(counts) <= 100
    assert counts.num_tokens == truth.total()
    assert most_frequent(counts)[:2] == ["common", "usual"]
    assert counts["common"] == 500
    assert counts["usual"] == 250
    assert counts.forgotten > 0


def test_bpe_learns_from_a_bounded_sample(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    learn = bpe.train

    def spy(texts, *arguments, **settings):  # type: ignore[no-untyped-def]
        kept = list(texts)
        seen.append(sum(len(text.encode()) for text in kept))
        return learn(kept, *arguments, **settings)

    monkeypatch.setattr(bpe, "train", spy)
    monkeypatch.setattr(bpe, "SAMPLE_BYTES", 1 << 20)
    path.write_text("some words of text, again and again\n" * 100_000, encoding="utf-8")
    tokenizer, _ = train_tokenizer(path, TokenizerConfig(kind="bpe"))
    assert seen[0] <= 1 << 20
    assert tokenizer.id(" again") is not None


def test_a_bpe_vocabulary_below_the_bytes_is_refused(path: Path) -> None:
    with pytest.raises(UsageError, match="too small"):
        train_tokenizer(path, TokenizerConfig(kind="bpe", vocab_size=100))
    tokenizer, _ = train_tokenizer(path, TokenizerConfig(kind="bpe", vocab_size=257))
    assert tokenizer.vocab_size == 257


def test_a_file_is_used_as_it_is(path: Path, tmp_path: Path) -> None:
    made, counts_V = train_tokenizer(path, TokenizerConfig(kind="char"))
    made.save(tmp_path / "tokenizer.json")
    config = TokenizerConfig(kind="bpe", file=tmp_path / "tokenizer.json")
    loaded, sampled_V = train_tokenizer(path, config)
    assert loaded.hash == made.hash
    assert sampled_V.tolist() == counts_V.tolist()


@pytest.mark.parametrize("kind", ["char", "word", "bpe"])
def test_lower_case_vocabularies(path: Path, kind: str) -> None:
    config = TokenizerConfig(kind=kind, lowercase=True)  # type: ignore[arg-type]
    tokenizer, _ = train_tokenizer(path, config)
    assert not any(
        s != s.lower() for s in tokenizer.spellings() if not s.startswith("<") and len(s) > 1
    )
    assert tokenizer.encode("THE").tolist() == tokenizer.encode("the").tolist()


def test_bytes_have_no_case(path: Path) -> None:
    with pytest.raises(UsageError, match="case"):
        train_tokenizer(path, TokenizerConfig(kind="byte", lowercase=True))


def test_a_file_of_one_word(path: Path) -> None:
    path.write_text("hello", encoding="utf-8")
    for kind in (*KINDS, "auto"):
        tokenizer, counts_V = train_tokenizer(path, TokenizerConfig(kind=kind))  # type: ignore[arg-type]
        assert len(counts_V) == tokenizer.vocab_size
        assert len(tokenizer.encode("hello")) >= 1


def test_compressed_text_gives_the_same_vocabulary(path: Path, tmp_path: Path) -> None:
    zipped = tmp_path / "text.txt.gz"
    zipped.write_bytes(gzip.compress(path.read_bytes()))
    for kind in ("char", "word"):
        config = TokenizerConfig(kind=kind)  # type: ignore[arg-type]
        assert train_tokenizer(path, config)[0].hash == train_tokenizer(zipped, config)[0].hash


class Spaced(characters.Characters):
    """A kind of one's own: characters, with a space between them when decoded."""

    def glue(self, previous: int, following: int) -> bytes:
        return b" "


def test_a_kind_from_outside_is_trained_saved_and_read(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "own.tokens:Spaced"
    monkeypatch.setitem(KIND_TABLE, name, f"{__name__}:{Spaced.__name__}")  # type: ignore[arg-type]
    tokenizer, counts_V = train_tokenizer(path, TokenizerConfig(kind=name))
    assert tokenizer.kind == name
    assert counts_V.sum() == len(tokenizer.encode(path.read_text(encoding="utf-8")))
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.kind == name
    assert loaded.hash == tokenizer.hash
    assert loaded.decode(loaded.encode("the")) == "t h e"
    with pytest.raises(UsageError, match=r"'tokenizer\.kind' cannot be 'bytte'") as caught:
        TokenizerConfig(kind="bytte")
    assert "'byte'" in caught.value.hint
