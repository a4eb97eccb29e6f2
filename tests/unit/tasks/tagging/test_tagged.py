"""Tagged files: every odd thing that they hold, written back as it came; damage named by line."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elman.base.errors import ElmanError, UsageError
from elman.tasks.tagging.reading import Sentence, guess_format, read_tagged
from elman.text.sources import file_lines
from elman.text.words import split_words

CONLLU = """\
# sent_id = 1
# text = Vámonos al mar, New York
1-2\tVámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tVamos\tir\tVERB\tV\tA=1|B=2\t0\troot\t0:root\t_
2\tnos\tnosotros\tPRON\tP\t_\t1\tobj\t1:obj\t_
3\tNew York\tNew York\tPROPN\tNNP\t_\t1\tobl\t1:obl\tSpaceAfter=No
3.1\tmar\tmar\tNOUN\tN\t_\t_\t_\t1:obl\t_

# a comment alone, then too many empty lines


1\t#\t#\t_\t_\t_\t0\troot\t_\t_

"""

COLUMNS = """\
-DOCSTART- -X- -X- O

EU NNP B-NP I-ORG
rejects VBZ B-VP O
German\u00a0call JJ B-NP I-MISC

Peter NNP B-NP I-PER
"""


def read(text: str, name: str = "x", **options: object) -> list[Sentence]:
    lines = text.splitlines(keepends=True)
    return list(read_tagged(lines, name, **options))  # type: ignore[arg-type]


def test_conllu_has_words_and_nothing_else() -> None:
    first, comment, empty, last = read(CONLLU, "x.conllu")
    assert first.words == ["Vamos", "nos", "New York"]
    assert first.tags == ["VERB", "PRON", "PROPN"]
    assert comment.words == empty.words == []
    assert (last.words, last.tags) == (["#"], [None])
    assert read(CONLLU, "x.conllu", column="xpos")[0].tags == ["V", "P", "NNP"]
    assert read(CONLLU, "x.conllu", column="8")[0].tags == ["root", "obj", "obl"]


def test_conllu_is_written_back_with_the_tags_alone_changed() -> None:
    sentences = read(CONLLU, "x.conllu")
    same = "".join(s.retagged([tag or "_" for tag in s.tags]) for s in sentences)
    assert same == CONLLU
    changed = "".join(s.retagged(["X"] * len(s.words)) for s in sentences)
    differing = [
        (old.split("\t"), new.split("\t"))
        for old, new in zip(CONLLU.split("\n"), changed.split("\n"), strict=True)
        if old != new
    ]
    assert len(differing) == 4
    for old, new in differing:
        assert new[3] == "X"
        assert old[:3] + old[4:] == new[:3] + new[4:]


def test_columns_between_spaces_or_tabs() -> None:
    mark, first, second = read(COLUMNS, "x.conll")
    assert mark.words == []
    assert first.words == ["EU", "rejects", "German\u00a0call"]
    assert first.tags == ["I-ORG", "O", "I-MISC"]
    assert second.tags == ["I-PER"]
    assert "".join(s.retagged([t or "" for t in s.tags]) for s in (mark, first, second)) == COLUMNS
    assert read(COLUMNS, "x.conll", column="2")[1].tags == ["NNP", "VBZ", "JJ"]
    (tabbed,) = read("New York\tB-loc\nis\tO", "x.tsv")
    assert tabbed.words == ["New York", "is"]
    assert tabbed.retagged(["O", "B-x"]) == "New York\tO\nis\tB-x"


def test_a_header_of_columns_is_no_word() -> None:
    text = "Word\tTag\none\tX\n\ntwo\tY\n"
    first, second = read(text, "x.tsv")
    assert (first.words, first.tags, second.words) == (["one"], ["X"], ["two"])
    assert first.retagged(["Z"]) == "Word\tTag\none\tZ\n\n"
    (sentence,) = read("one\tX\nword\ttag\n", "x.tsv")
    assert sentence.words == ["one", "word"]


def test_white_space_around_tags_does_not_count() -> None:
    (sentence,) = read("one\tX \ntwo\t X\n", "x.tsv")
    assert sentence.tags == ["X", "X"]


def test_words_without_tags_get_a_column() -> None:
    (sentence,) = read("one\ntwo\n", "x.conll", tags_needed=False)
    assert sentence.retagged(["A", "B"]) == "one\tA\ntwo\tB\n"
    with pytest.raises(ElmanError, match="line 1: there is no column 2 of tags"):
        read("one\ntwo\n", "x.conll")


def test_plain_text_is_split_into_words_and_marks() -> None:
    first, empty, second = read("I don't, OK?\n\nYes.", format="text", tags_needed=False)
    assert first.words == ["I", "don't", ",", "OK", "?"]
    assert empty.words == []
    assert second.retagged(["UH", "."]) == "Yes\tUH\n.\t.\n\n"
    (spaced,) = read("I do n't.", format="words", tags_needed=False)
    assert spaced.words == ["I", "do", "n't."]
    assert split_words("well-known") == ["well-known"]
    with pytest.raises(UsageError, match="has no tags"):
        read("Yes.", format="text")
    with pytest.raises(ElmanError, match="there is no column 2 of tags"):
        read("Yes.")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("1\ttoo\tfew", r"bad\.conllu, line 3: 3 columns instead of CoNLL-U's 10"),
        ("2\ta\ta\tX\tX\t_\t0\troot\t_\t_", "line 3: the id is '2' instead of 1"),
        ("one\ta\ta\tX\tX\t_\t0\troot\t_\t_", "line 3: the id is 'one' instead of 1"),
        ("1\t\ta\tX\tX\t_\t0\troot\t_\t_", "line 3: the word is missing"),
    ],
)
def test_malformed_conllu_names_file_and_line(line: str, said: str) -> None:
    with pytest.raises(ElmanError, match=said) as caught:
        read(f"# one\n\n{line}\n\n", "bad.conllu")
    assert caught.value.hint


def test_malformed_columns_name_file_and_line() -> None:
    with pytest.raises(ElmanError, match=r"bad\.conll, line 4: 1 columns instead of 2"):
        read("a O\nb O\n\nc\n", "bad.conll")
    with pytest.raises(ElmanError, match="line 1: the tag is missing"):
        read("a\t\n", "bad.tsv")
    with pytest.raises(UsageError, match="have no names, so there is no 'ner'"):
        read("a O\n", "bad.conll", column="ner")
    with pytest.raises(UsageError, match="no column called 'upost'") as caught:
        read(CONLLU, "x.conllu", column="upost")
    assert "upos" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.conllu.gz", "anything", "conllu"),
        ("stdin", CONLLU, "conllu"),
        ("stdin", "a\tO\n\nb\tO\n", "columns"),
        ("stdin", "a X O\nb X O\n", "columns"),
        ("stdin", "word pos ner\na X O\nb X B-ORG\n", "columns"),
        ("stdin", "A sentence as people write them.\nAnd one.\n", "text"),
        ("stdin", "", "text"),
        ("stdin", "the teacher found her book.\n", "text"),
        ("stdin", "she found her book .\nhe lost his laptop .\n", "text"),
        ("stdin", "A " * 10_000 + "B\n", "text"),
        ("train.txt", COLUMNS, "columns"),
    ],
)
def test_formats_are_found_out(name: str, text: str, expected: str) -> None:
    assert guess_format(name, text.splitlines(keepends=True)) == expected


def test_files_are_read_compressed_too(tmp_path: Path) -> None:
    path = tmp_path / "x.conllu.gz"
    path.write_bytes(gzip.compress(CONLLU.encode()))
    assert "".join(file_lines(path)) == CONLLU


WORD = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1, max_size=5)


@settings(max_examples=60)
@given(st.lists(st.lists(WORD.filter(lambda w: w.strip(" ") == w), min_size=1), max_size=4))
def test_whatever_the_words_are_conllu_comes_back_whole(sentences: list[list[str]]) -> None:
    text = "".join(
        "".join(f"{i}\t{w}\t_\tX\t_\t_\t0\t_\t_\t_\n" for i, w in enumerate(words, 1)) + "\n"
        for words in sentences
    )
    found = list(read_tagged((f"{line}\n" for line in text.split("\n")[:-1]), "x.conllu"))
    assert [s.words for s in found] == sentences
    assert "".join(s.retagged(["X"] * len(s.words)) for s in found) == text
