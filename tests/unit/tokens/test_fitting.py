from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elman.tokens import bpe, bytes, characters, pretokenized, words
from elman.tokens.fitting import FittedTokenizer, Fitting, Form, count_unknown, first_lines
from elman.tokens.tokenizer import Tokenizer

WORDS = "the student opened her book N mr. u.s. 's n't do ca not can $ N-year-old said"
PENN = WORDS.split()
WORDS = "The the student opened her book . , \" ( ) 's 't don well known 1 000 @-@ @,@ –"
WIKI = WORDS.split()


def fitting(*entries: str) -> Fitting:
    return Fitting(Tokenizer(pretokenized.build(entries)))


def read(found: Fitting, text: str) -> list[str]:
    tokenizer = found.tokenizer_for([text])
    return [tokenizer.token(i) for i in tokenizer.encode(text)]


def test_the_vocabulary_tells_what_the_training_text_looked_like() -> None:
    assert fitting(*PENN).form == Form(True, True, True, True)
    assert fitting(*WIKI).form == Form(False, True, False, False)
    assert fitting("The", "book.", "book,", "old", "cat").form == Form()  # words with their marks
    assert fitting("a", "b", "c", "_").form == Form(lowercase=True)  # letters, not words
    assert Fitting(Tokenizer(words.build(["the", "cat"]))).form == Form(lowercase=True)
    assert Fitting(Tokenizer(words.build(["The", "cat"]))).form == Form()
    assert Fitting(Tokenizer(characters.build("abc"))).form == Form(lowercase=True)
    assert Fitting(Tokenizer(bytes.build())).form == Form()
    few = Tokenizer(bpe.train(["the cat sat on the mat\n"] * 3, 270))
    assert Fitting(few).form == Form()  # too few merges to be certain


def test_plain_text_is_read_like_the_penn_treebank() -> None:
    found = fitting(*PENN)
    assert read(found, "The student opened her book.") == [
        "the",
        "student",
        "opened",
        "her",
        "book",
    ]
    said = "Mr. X said, \"I can't (5,000 U.S. students') $3 20-year-old!\" The book cannot do."
    assert " ".join(read(found, said)) == (
        "mr. <unk> said <unk> ca n't N u.s. <unk> $ N N-year-old the book can not do"
    )
    assert read(found, "Don’t") == ["do", "n't"]


def test_plain_text_is_read_like_wikitext() -> None:
    found = fitting(*WIKI)
    assert " ".join(read(found, "“The student’s well-known book—don't!” (1,000).")) == (
        "\" The student 's well @-@ known book – don 't <unk> \" ( 1 @,@ 000 ) ."
    )


def test_text_in_the_form_of_the_training_text_stays() -> None:
    found = fitting(*PENN)
    for text in ("the student said N u.s. 's book", "the zzz <unk> N said", "the zzz ."):
        assert found.tokenizer_for([text]) is found.tokenizer
    assert read(found, "The <unk> N Book don't Zzz") == (
        ["the", "<unk>", "N", "book", "<unk>", "<unk>"]
    )
    # It is tokenised, so marks stay; it is not lower-case, as the training text was.
    assert read(found, "The zzz , the book .") == ["the", "<unk>", "<unk>", "the", "book", "<unk>"]


@given(st.text(alphabet="abcTthe b.,'’\"(—–-/5%$!…<>\n é", max_size=60))
def test_spans_belong_to_the_pieces_and_no_known_word_is_lost(text: str) -> None:
    for entries in (PENN, WIKI):
        plain = Tokenizer(pretokenized.build(entries))
        tokenizer = FittedTokenizer(plain, Form(True, True, False, True))
        ids, spans = tokenizer.encode_spans(text)
        assert ids.tolist() == tokenizer.encode(text).tolist()
        ends = [0, *(end for _, end in spans)]
        assert all(before <= start < end for before, (start, end) in zip(ends, spans, strict=False))
        known = {word for word in text.split() if word in entries}
        assert known <= {tokenizer.token(i) for i in ids}


def test_lower_casing_keeps_places() -> None:
    tokenizer = FittedTokenizer(Tokenizer(characters.build("abci ")), Form(lowercase=True))
    assert tokenizer.rewritten("ABC İ") == "abc İ"  # the lower-case form has two characters
    assert [span for _, span in zip(*tokenizer.encode_spans("AB İc"), strict=True)] == [
        (i, i + 1) for i in range(5)
    ]


def test_files_are_rewritten_and_unknown_tokens_counted(tmp_path: Path) -> None:
    path = tmp_path / "plain.txt"
    path.write_text("The student\nZzz said: 5!\n", encoding="utf-8")
    found = fitting(*PENN)
    assert first_lines([path]) == ["The student", "Zzz said: 5!", ""]
    tokenizer = found.tokenizer_for(first_lines([path]))
    assert isinstance(tokenizer, FittedTokenizer)
    assert tokenizer.rewrite([path], tmp_path / "out.txt") == path.stat().st_size
    assert (tmp_path / "out.txt").read_text() == "the student\nzzz said N\n"
    assert tokenizer.reads_as == "lower-cased, punctuation removed, numbers as N"
    assert count_unknown(tokenizer, ["The zzz", "book"]) == (1, 3)
    assert count_unknown(tokenizer, ["The zzz", "book"], include_end=True) == (1, 5)


@pytest.mark.parametrize("text", ["", " \n ", "...", "!" * 100_000, "a/" * 50_000, "the-" * 25])
def test_text_without_words_is_no_error(text: str) -> None:
    found = fitting(*PENN)
    ids, spans = found.tokenizer_for([text]).encode_spans(text)
    assert len(ids) == len(spans)
