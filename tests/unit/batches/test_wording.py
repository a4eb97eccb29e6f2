"""Which word a token belongs to."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elman.batches.wording import NO_WORD, Spelled, Wording
from elman.testing import TOY_TEXT
from elman.tokens.tokenizer import Tokenizer
from elman.tokens.tokenizer_config import TokenizerConfig
from elman.tokens.train import train_tokenizer

KINDS = {
    "word": TokenizerConfig(kind="word", lowercase=True),
    "bpe": TokenizerConfig(kind="bpe", vocab_size=300),
    "char": TokenizerConfig(kind="char"),
    "pretokenized": TokenizerConfig(kind="pretokenized"),
}


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    path: Path = tmp_path_factory.mktemp("wording") / "toy.txt"
    path.write_text(TOY_TEXT, encoding="utf-8")
    return {kind: train_tokenizer(path, config)[0] for kind, config in KINDS.items()}


def test_words_keep_the_spelling_of_the_text(tokenizers: dict[str, Tokenizer]) -> None:
    found = Spelled.of_text("The Student, OPENED", tokenizers["word"])
    assert found == Spelled(("The", "Student", ",", "OPENED"), (0, 1, 2, 3))


def test_pieces_belong_to_the_word_that_they_lie_in(tokenizers: dict[str, Tokenizer]) -> None:
    for kind in ("bpe", "char"):
        text = "zebras opened  the book"
        ids, spans = tokenizers[kind].encode_spans(text)
        found = Spelled.of_text(text, tokenizers[kind])
        assert found.words == ("zebras", "opened", "the", "book")
        assert len(found) == len(ids)
        for place, (start, end) in zip(found.places, spans, strict=True):
            piece = text[start:end].strip()
            assert place == NO_WORD if not piece else piece in found.words[place]


@given(st.text(max_size=40))
@settings(max_examples=60)
def test_every_token_has_a_place(tokenizers: dict[str, Tokenizer], text: str) -> None:
    for tokenizer in tokenizers.values():
        found = Spelled.of_text(text, tokenizer)
        assert len(found) == len(tokenizer.encode(text))
        assert all(NO_WORD <= place < len(found.words) for place in found.places)
        words = [place for place in found.places if place != NO_WORD]
        assert words == sorted(words)


def test_a_batch_is_cut_and_padded() -> None:
    wording = Wording.of([Spelled.of_words(["a", "b"]), Spelled(("cd",), (0, 0, NO_WORD))])
    assert wording.words == [("a", "b"), ("cd",)]
    assert wording.places(3).tolist() == [[0, 1, NO_WORD], [0, 0, NO_WORD]]
    assert not wording.aligned
    assert wording[:1].aligned
    assert wording[:1].to("cpu") == Wording.of([Spelled.of_words(["a", "b"])])
