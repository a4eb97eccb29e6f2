"""Verses without punctuation."""

from __future__ import annotations

from elman.lab.verses import all_verses, unmarked


def test_marks_are_taken_off_and_kept() -> None:
    words, marks = unmarked("And God said, Let there be light: and there was light.")
    assert " ".join(words) == "and god said let there be light and there was light"
    assert marks == ("none", "none", ",", *["none"] * 3, ":", *["none"] * 3, ".")


def test_an_apostrophe_is_a_part_of_the_word() -> None:
    assert unmarked("Abram's wife;") == (("abram's", "wife"), ("none", ";"))
    assert unmarked("Abram’s wife")[0] == ("abram’s", "wife")
    assert unmarked("Beth-el,") == (("beth-el",), (",",))


def test_no_verse_occurs_twice() -> None:
    verses = [words for words, _ in all_verses()]
    assert len(verses) > 30_000
    assert len(set(verses)) == len(verses)
